package admin_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestHTTPSaysWhatIsWrong: an invalid request fails without effect, and its error explains what is valid.
func TestHTTPSaysWhatIsWrong(t *testing.T) {
	policy := access.Policy{TokenFile: tokenFile(t, "secret")}
	a, _ := inProcess(t, policy)
	guarded, err := a.Handler(t.Context(), policy)
	if err != nil {
		t.Fatal(err)
	}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Authorization", "Bearer secret")
		guarded.ServeHTTP(w, r)
	})
	const block = `{"domain":"shop","entries":[{"key":"user","value":"ann"}],"for":"60s"`
	for _, tt := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"GET", "block", "", 405, "use POST"},
		{"DELETE", "controls", "", 405, "use GET"},
		{"POST", "controls", "", 405, "use GET"},
		{"POST", "block?dryRun=true", block + "}", 400, "put the request in the body"},
		{"POST", "block", block + `}{"dryRun":true}`, 400, "the body must be one JSON object, but after"},
		{"POST", "block", block + `,"dryrun":true}`, 400, `the body is invalid: (line 1:71): unknown field \"dryrun\"`},
		{"POST", "block", strings.Replace(block, "60s", "2y", 1) + "}", 400, `\"2y\": write a duration such as \"90s\", \"2h\" or \"1d\"`},
		{"POST", "block", strings.Replace(block, "60s", "31d", 1) + "}", 400, `744h0m0s is not a valid duration for a control`},
		{"POST", "block", strings.Replace(block, "60s", "1.5d", 1) + `,"dryRun":true}`, 200, `"kind":"CONTROL_KIND_BLOCK"`},
		{"POST", "block", block + `,"reason":"` + strings.Repeat("x", 256<<10) + `"}`, 413, "the body has more than 256 KiB"},
		{"POST", "watch", `{"domain":"` + strings.Repeat("x", 256<<10) + `"}`, 413, "the body has more than 256 KiB"},
		{"GET", "controls?domian=shop", "", 400, "unknown parameter domian: want one of domain, page_size, page_token"},
	} {
		code, body := ask(t, tt.method, serveHTTP(t, h)+"/admin/v1/"+tt.path, tt.body)
		if code != tt.code || !strings.Contains(body, tt.want) {
			t.Errorf("%s %s: %d %s; want %d with %s", tt.method, tt.path, code, body, tt.code, tt.want)
		}
	}
	for _, query := range []string{"domain=shop&page_size=5", "pageSize=5"} {
		if code, body := ask(t, "GET", serveHTTP(t, h)+"/admin/v1/controls?"+query, ""); code != http.StatusOK || !strings.Contains(body, `"controls":[]`) {
			t.Errorf("%s: %d %s; want no controls", query, code, body)
		}
	}
}

// TestStrangersTakeNoTurns: a client without a valid token that sends its body slowly delays no other client.
func TestStrangersTakeNoTurns(t *testing.T) {
	const token = "0123456789abcdef0123456789abcdef"
	policy := access.Policy{TokenFile: tokenFile(t, token), Guard: access.NewGuard(nil)}
	a, _ := inProcess(t, policy)
	h, err := a.Handler(t.Context(), policy)
	if err != nil {
		t.Fatal(err)
	}
	url := serveHTTP(t, h)
	var waiting []net.Conn
	for i := range 40 { // more than there are turns
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		head := "POST /admin/v1/block HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
		if i%2 == 0 {
			head += "Authorization: Bearer guess\r\n"
		}
		if _, err := io.WriteString(conn, head+"\r\n{"); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			waiting = append(waiting, conn)
		} else { // answered without its body, so this call no longer competes for a turn
			if answer, err := io.ReadAll(io.LimitReader(conn, 12)); string(answer) != "HTTP/1.1 401" {
				t.Fatalf("answer to a stranger: %q, %v", answer, err)
			}
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/admin/v1/controls", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: testkit.Patience}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if _ = answer.Body.Close(); answer.StatusCode != http.StatusOK {
		t.Errorf("answer to the operator: %s", answer.Status)
	}
	for _, conn := range waiting { // until no call sleeps
		if _, err := io.ReadFull(conn, make([]byte, 12)); err != nil {
			t.Error(err)
		}
	}
}
