package web_test

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/process/web"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// pages is a debug listener with a line on each page.
func pages() web.Debug {
	write := func(s string) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
	}
	return web.Debug{
		Rules:        write("shop.a: unit=HOUR requests_per_unit=2, shadow_mode: false, quota_mode: false\n"),
		RulesVerbose: write("# a.yaml:3\n"),
		RulesJSON:    write("{}\n"),
		Stats:        write("ratelimit.service.config_load_success: 1\n"),
		Metrics:      http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "up 1\n") }),
		MayProfile:   (&admin.Access{Listener: &net.TCPAddr{IP: net.IPv6loopback}, Host: "DEBUG_HOST"}).AllowHTTP,
	}
}

const indexPage = `/debug/pprof/: profiles of this process, if this port is open only to this machine, or with the admin token; hit for a list
/debug/pprof/profile: CPU profile over ?seconds=30, at most 60
/debug/pprof/trace: execution trace over ?seconds=1, at most 60
/metrics: the counters, for Prometheus
/rlconfig: print out the currently loaded configuration for debugging
/stats: print out stats
`

func TestDebugPages(t *testing.T) {
	addr, _ := start(t, web.DebugHandler(pages()), web.Limits{})
	for path, want := range map[string]answer{
		"/":             {200, plainText, indexPage},
		"/nothing-here": {200, plainText, indexPage},
		"/debug/":       {200, plainText, indexPage},
		"/stats":        {200, plainText, "ratelimit.service.config_load_success: 1\n"},
		"/metrics":      {200, plainText, "up 1\n"},
		"/rlconfig": {
			200, plainText,
			"shop.a: unit=HOUR requests_per_unit=2, shadow_mode: false, quota_mode: false\n",
		},
		"/rlconfig?verbose":            {200, plainText, "# a.yaml:3\n"},
		"/rlconfig?format=json":        {200, "application/json", "{}\n"},
		"/rlconfig?format=yaml":        {400, plainText, "format=yaml: want json, or no format for lines of text\n"},
		"/debug/pprof/no-such-profile": {404, plainText, "Unknown profile\n"},
	} {
		if diff := cmp.Diff(want, do(t, "GET", "http://"+addr+path, "")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	list := do(t, "GET", "http://"+addr+"/debug/pprof/", "")
	for _, name := range []string{"heap", "goroutine", "profile", "trace"} {
		if list.Status != 200 || !strings.Contains(list.Body, name+"?debug=1'") {
			t.Errorf("/debug/pprof/ answers %v; want a list with %s", list, name)
		}
	}
	got := do(t, "GET", "http://"+addr+"/debug/pprof/goroutine?debug=1", "")
	if got.Status != 200 || !strings.Contains(got.Body, "goroutine profile: total") {
		t.Errorf("/debug/pprof/goroutine?debug=1 answers %v", got)
	}
	for _, name := range []string{"heap?gc=1", "allocs", "block", "mutex", "threadcreate", "goroutine"} {
		if got := do(t, "GET", "http://"+addr+"/debug/pprof/"+name, ""); got.Status != 200 || !isGzip(got.Body) {
			t.Errorf("/debug/pprof/%s answers %d, %d bytes; want a profile", name, got.Status, len(got.Body))
		}
	}
}

func isGzip(s string) bool {
	r, err := gzip.NewReader(strings.NewReader(s))
	if err != nil {
		return false
	}
	n, err := io.Copy(io.Discard, r)
	return err == nil && n > 0
}

// If a page cannot be written, the answer is an error, not half of the page.
func TestDebugPageError(t *testing.T) {
	d := pages()
	d.Stats = func(w io.Writer) error { _, _ = io.WriteString(w, "half"); return errors.New("no counters") }
	addr, _ := start(t, web.DebugHandler(d), web.Limits{})
	want := answer{500, plainText, "cannot show this: no counters\n"}
	if diff := cmp.Diff(want, do(t, "GET", "http://"+addr+"/stats", "")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// If that is found out only after a part has been sent, the connection is cut: no caller takes the part for the whole.
func TestDebugPageErrorLate(t *testing.T) {
	d := pages()
	d.Rules = func(w io.Writer) error {
		if _, err := io.WriteString(w, strings.Repeat("shop.a: unit=HOUR\n", 10_000)); err != nil {
			return err
		}
		return errors.New("no more rules")
	}
	addr, log := start(t, web.DebugHandler(d), web.Limits{})
	got, err := try(t, "GET", "http://"+addr+"/rlconfig", "")
	if !errors.Is(err, io.ErrUnexpectedEOF) || got.Status != 200 || log.String() != "" {
		t.Errorf("%d with %d bytes, %v, and the log is %q; want 200, a connection that is cut and no log", got.Status, len(got.Body), err, log)
	}
}

// Callers from other machines, and from proxies on this one, see the rules and the counters, as with the reference, but no
// profiles, whatever their headers claim.
func TestH07_Remote(t *testing.T) {
	for _, from := range []string{
		"10.1.2.3:4711", "[2001:db8::1]:4711", "[::ffff:10.1.2.3]:4711", "0.0.0.0:1", "[fe80::1%lo]:1",
		"127.0.0.6:1", "127.8.9.1:4711", "[::ffff:127.0.0.6]:1", // a proxy on this machine
	} {
		tcp, err := net.ResolveTCPAddr("tcp", from)
		if err != nil {
			t.Fatal(err)
		}
		addr, _ := startOn(t, testkit.From(testkit.Listen(t), tcp), web.DebugHandler(pages()), web.Limits{})
		for _, path := range []string{"/", "/rlconfig", "/stats", "/metrics"} {
			if got := do(t, "GET", "http://"+addr+path, ""); got.Status != 200 {
				t.Errorf("%s from %s: %v; want 200", path, from, got)
			}
		}
		for _, path := range []string{
			"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile?seconds=1", "/debug/pprof/trace", "/debug/pprof/cmdline",
			"/debug/pprof/nothing",
		} {
			for _, method := range []string{"GET", "POST", "HEAD"} {
				got := do(t, method, "http://"+addr+path, "",
					"X-Forwarded-For", "127.0.0.1", "X-Real-Ip", "127.0.0.1", "Forwarded", "for=127.0.0.1", "Host", "localhost")
				if got.Status != http.StatusForbidden {
					t.Errorf("%s %s from %s: %d; want 403", method, path, from, got.Status)
				}
			}
		}
	}
}

func TestH07_Loopback(t *testing.T) {
	for _, from := range []string{"127.0.0.1:4711", "[::1]:4711", "[::ffff:127.0.0.1]:4711"} {
		tcp, err := net.ResolveTCPAddr("tcp", from)
		if err != nil {
			t.Fatal(err)
		}
		url := func(d web.Debug) string {
			addr, _ := startOn(t, testkit.From(testkit.Listen(t), tcp), web.DebugHandler(d), web.Limits{})
			return "http://" + addr + "/debug/pprof/heap"
		}
		if got := do(t, "GET", url(pages()), ""); got.Status != 200 {
			t.Errorf("/debug/pprof/heap from %s: %v; want 200", from, got)
		}
		open := pages()
		open.MayProfile = (&admin.Access{Listener: &net.TCPAddr{IP: net.IPv4zero}, Host: "DEBUG_HOST"}).AllowHTTP
		if got := do(t, "GET", url(open), ""); got.Status != 403 || !strings.HasSuffix(got.Body, "set ADMIN_TOKEN_FILE, or DEBUG_HOST to 127.0.0.1\n") {
			t.Errorf("/debug/pprof/heap from %s, where the listener is open to other machines: %v; want 403", from, got)
		}
	}
}

// With an admin token, its owner may take profiles, and no one else, this machine included.
func TestH07_Token(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	testkit.WriteFile(t, file, "secret\n")
	d := pages()
	access := &admin.Access{TokenFile: file, Listener: &net.TCPAddr{IP: net.IPv4zero}, InClear: true}
	d.MayProfile = access.AllowHTTP
	for _, from := range []*net.TCPAddr{{IP: net.IPv4(127, 0, 0, 1), Port: 1}, {IP: net.IPv4(10, 1, 2, 3), Port: 1}} {
		addr, _ := startOn(t, testkit.From(testkit.Listen(t), from), web.DebugHandler(d), web.Limits{})
		for authorization, want := range map[string]int{"Bearer secret": 200, "Bearer guess": 401, "Basic secret": 401, "": 401} {
			if got := do(t, "GET", "http://"+addr+"/debug/pprof/heap", "", "Authorization", authorization); got.Status != want {
				t.Errorf("from %v with %q: %d; want %d", from, authorization, got.Status, want)
			}
		}
	}
}

func TestH09_Profiles(t *testing.T) {
	const longest = time.Second
	// The time-outs are shorter than the profile, which must outlast them. They also cut off a caller that is delayed
	// for that long, so it is enough if one of several rounds succeeds.
	limits := web.Limits{ReadHeader: 100 * time.Millisecond, Read: 150 * time.Millisecond, Write: 200 * time.Millisecond}
	addr, _ := start(t, web.DebugHandlerWith(pages(), longest), limits)
	for _, path := range []string{"/debug/pprof/profile", "/debug/pprof/trace", "/debug/pprof/heap"} {
		var wrong string
		for range 20 {
			if wrong = twoProfiles(t, "http://"+addr+path+"?seconds=99999", longest); wrong == "" {
				break
			}
		}
		if wrong != "" {
			t.Errorf("%s: %s", path, wrong)
		}
	}
	testkit.Eventually(t, "there is a profile again, once those have ended", func() bool {
		got, err := try(t, "GET", "http://"+addr+"/debug/pprof/profile?seconds=0.01", "")
		return err == nil && got.Status == 200 && isGzip(got.Body)
	})
}

// twoProfiles asks for two profiles at once, one of which must be accepted and the other rejected, and returns what is
// wrong.
func twoProfiles(t *testing.T, url string, longest time.Duration) (wrong string) {
	t.Helper()
	type outcome struct {
		answer
		err error
	}
	got, begin := make(chan outcome, 2), time.Now()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			a, err := try(t, "GET", url, "")
			got <- outcome{a, err}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	a, b := <-got, <-got // the rejection is faster
	switch {
	case a.err != nil || b.err != nil:
		return fmt.Sprintf("%v, %v", a.err, b.err)
	case took < longest || took > longest+testkit.Patience:
		return fmt.Sprintf("they took %v; want %v", took, longest)
	case a.Status != http.StatusConflict || a.Body != "another profile is being taken; only one can be taken at a time\n":
		return fmt.Sprintf("the second: %v; want 409", a.answer)
	case b.Status != 200 || !isGzip(b.Body) && !strings.HasPrefix(b.Body, "go 1."):
		return fmt.Sprintf("the first: %d with %d bytes; want a profile", b.Status, len(b.Body))
	}
	return ""
}

// A profile ends when its caller disconnects, so that the next one can begin.
func TestH09_CallerLeaves(t *testing.T) {
	addr, _ := start(t, web.DebugHandler(pages()), web.Limits{})
	c := dial(t, addr)
	if _, err := io.WriteString(c, "GET /debug/pprof/profile?seconds=60 HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	runs := regexp.MustCompile(`\[select[^\]]*\]:\nnet/http/pprof\.sleep\(`)
	testkit.Eventually(t, "the profile has begun", func() bool {
		return runs.MatchString(do(t, "GET", "http://"+addr+"/debug/pprof/goroutine?debug=2", "").Body)
	})
	url := "http://" + addr + "/debug/pprof/profile?seconds=0.01"
	if got := do(t, "GET", url, ""); got.Status != http.StatusConflict {
		t.Errorf("a second profile: %d; want 409", got.Status)
	}
	_ = c.Close()
	testkit.Eventually(t, "the profile has ended", func() bool { return do(t, "GET", url, "").Status == http.StatusOK })
}

func TestH09_Cap(t *testing.T) {
	for _, tt := range []struct{ name, asked, want string }{
		{"profile", "", ""},
		{"profile", "0.5", "1"},
		{"profile", "59", "59"},
		{"profile", "59.5", "60"},
		{"profile", "61", "60"},
		{"profile", "99999", "60"},
		{"profile", "1e300", "60"},
		{"profile", "1e999", "60"},
		{"profile", "Inf", "60"},
		{"trace", "", ""},
		{"trace", "0.5", "0.5"},
		{"trace", "61", "60"},
		{"heap", "0.5", "1"},
		{"heap", "99999", "60"},
	} {
		if got, err := web.ProfileSeconds(tt.name, tt.asked); err != nil || got != tt.want {
			t.Errorf("%s, seconds=%s: %s, %v; want %s", tt.name, tt.asked, got, err, tt.want)
		}
	}
	addr, _ := start(t, web.DebugHandler(pages()), web.Limits{})
	for _, name := range []string{"profile", "trace", "heap"} {
		for _, seconds := range []string{"x", "0", "-1", "NaN", "-1e999"} {
			got := do(t, "GET", "http://"+addr+"/debug/pprof/"+name+"?seconds="+seconds, "")
			if want := "seconds=\"" + seconds + "\": want a number above 0; the maximum is 60\n"; got.Status != 400 || got.Body != want {
				t.Errorf("%s, seconds=%s: %v; want 400 %q", name, seconds, got, want)
			}
		}
	}
}
