package access_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

const (
	annsToken = "0123456789abcdef0123456789abcdef"
	bobsToken = "fedcba9876543210fedcba9876543210"
)

// tokenFile writes text to a file and returns its path.
func tokenFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	testkit.WriteFile(t, file, text)
	return file
}

func wantStatus(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	if got := status.Convert(err); got.Code() != code || !strings.Contains(got.Message(), text) {
		t.Errorf("status %v %q; want %v with %q", got.Code(), got.Message(), code, text)
	}
}

// resume returns the permission of a cookie: nothing, look, or change.
func resume(a *access.Policy, text string) string {
	r := httptest.NewRequest(http.MethodGet, "/ui/", nil)
	r.RemoteAddr = "127.0.0.1:5"
	ctx, change, ok := a.Resume(r, text)
	switch md, _ := metadata.FromOutgoingContext(ctx); {
	case !ok && len(md) == 0:
		return "nothing"
	case !ok || len(md.Get("authorization")) != 1:
		return "a mix-up"
	case change:
		return "change"
	default:
		return "look"
	}
}

// TestSession: every replica with the token accepts its session until it expires or the token is removed. The session does not
// contain the token, and a modified one is invalid.
func TestSession(t *testing.T) {
	full, read := tokenFile(t, "ann: "+annsToken+"\nbob: "+bobsToken), tokenFile(t, "eve: looksonly")
	local := func() *http.Request {
		r := httptest.NewRequest(http.MethodPost, "/ui/login", nil)
		r.RemoteAddr = "127.0.0.1:5"
		return r
	}
	synctest.Test(t, func(t *testing.T) {
		a, replica := &access.Policy{TokenFile: full, ReadTokenFile: read}, &access.Policy{TokenFile: full, ReadTokenFile: read}
		ann, ends, err := a.Login(local(), annsToken+"\n")
		if err != nil || time.Until(ends) != 12*time.Hour || strings.Contains(ann, annsToken) {
			t.Fatalf("ann: %q until %v, %v", ann, ends, err)
		}
		bob, _, err := a.Login(local(), bobsToken)
		if err != nil {
			t.Fatal(err)
		}
		eve, _, err := a.Login(local(), "looksonly")
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = a.Login(local(), "guess")
		wantStatus(t, err, codes.Unauthenticated, "the token is wrong")
		far := local()
		far.RemoteAddr = "203.0.113.5:5"
		_, _, err = a.Login(far, annsToken)
		wantStatus(t, err, codes.PermissionDenied, "over TLS")
		wantStatus(t, a.Reachable(far), codes.PermissionDenied, "over TLS")

		swapped := func(old, by string) string { // ann's session with modified text and the old signature
			head, tail, _ := strings.Cut(ann, ".")
			return reword(t, head, old, by) + "." + tail
		}
		for name, tt := range map[string]struct{ text, want string }{
			"ann": {ann, "change"}, "eve": {eve, "look"}, "no session": {"", "nothing"}, "noise": {"a.b", "nothing"},
			"renamed": {swapped("ann", "bob"), "nothing"}, "longer": {swapped(" 9", " 99"), "nothing"}, "role": {swapped("change", "look"), "nothing"},
			"cut": {ann[:len(ann)-1], "nothing"}, "bob's signature": {strings.Split(ann, ".")[0] + "." + strings.Split(bob, ".")[1], "nothing"},
		} {
			for _, at := range []*access.Policy{a, replica} {
				if got := resume(at, tt.text); got != tt.want {
					t.Errorf("%s: permission %s, want %s", name, got, tt.want)
				}
			}
		}

		// A forged session counts as a guess, and an expired one does not. Over a network without TLS neither is checked.
		var denied atomic.Int64
		var log strings.Builder
		guarded := access.Policy{
			TokenFile: full, ReadTokenFile: read, Guard: access.NewGuard(func() { denied.Add(1) }), Log: slog.New(slog.NewTextHandler(&log, nil)),
		}
		tries := func(from, text string) (what string, took time.Duration, counted int64) {
			r, began, before := httptest.NewRequest(http.MethodGet, "/ui/", nil), time.Now(), denied.Load()
			r.RemoteAddr = from
			if _, change, ok := guarded.Resume(r, text); ok && change {
				return "change", time.Since(began), denied.Load() - before
			}
			return "nothing", time.Since(began), denied.Load() - before
		}
		forged := swapped(" 9", " 99")
		ended := signedBy(annsToken, "change 1 ann")
		for _, tt := range []struct {
			from, text, want string
			took             time.Duration
			counted          int64
		}{
			{"127.0.0.1:1", ann, "change", 0, 0},
			{"127.0.0.1:1", "", "nothing", 0, 0},
			{"127.0.0.1:1", forged, "nothing", time.Second, 1},
			{"203.0.113.5:1", ann, "nothing", 0, 1},
			{"203.0.113.5:1", forged, "nothing", 0, 1},
			{"127.0.0.1:1", ended, "nothing", 0, 0},
		} {
			if what, took, counted := tries(tt.from, tt.text); what != tt.want || took != tt.took || counted != tt.counted {
				t.Errorf("from %s: permission %s after %v, counted %d times; want %s, %v, %d", tt.from, what, took, counted, tt.want, tt.took, tt.counted)
			}
		}
		for range 4 {
			go tries("127.0.0.1:1", forged)
		}
		synctest.Wait()
		if what, took, _ := tries("127.0.0.1:1", forged); what != "nothing" || took != 0 {
			t.Errorf("the fifth concurrent guess: %s after %v, want an immediate error", what, took)
		}
		if what, _, _ := tries("127.0.0.1:1", ann); what != "change" {
			t.Error("a session of a long token is rejected while others guess")
		}
		if what, took, counted := tries("127.0.0.1:1", signedBy("looksonly", "look 1 eve")); what != "nothing" || took != 0 || counted != 1 {
			t.Errorf("an expired session of a short token while others guess: %s after %v, counted %d times; want it to count as a guess", what, took, counted)
		}
		time.Sleep(time.Second)

		// Errors that any caller can cause are logged once a minute.
		testkit.WriteFile(t, full, "ann"+": ")
		for range 20 {
			tries("127.0.0.1:1", ann)
		}
		time.Sleep(time.Minute)
		tries("127.0.0.1:1", ann)
		if lines := strings.Split(strings.TrimSpace(log.String()), "\n"); len(lines) != 2 || !strings.Contains(lines[1], "omitted=19") {
			t.Errorf("log of 21 sessions with an invalid token file:\n%s", log.String())
		}

		testkit.WriteFile(t, full, "ann: "+strings.ToUpper(annsToken)+"\nbob: "+bobsToken)
		if got := resume(a, ann) + ", " + resume(a, bob); got != "nothing, change" {
			t.Errorf("after ann's token was replaced: %s; want nothing, change", got)
		}
		time.Sleep(12 * time.Hour)
		if got := resume(a, bob); got != "nothing" {
			t.Errorf("after twelve hours: permission %s", got)
		}
	})
}

// signedBy returns a session text signed with a token.
func signedBy(token, says string) string {
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("ratelimitd session\x00" + says))
	return base64.RawURLEncoding.EncodeToString([]byte(says)) + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// reword changes the first half of a session text.
func reword(t *testing.T, head, old, by string) string {
	t.Helper()
	says, err := base64.RawURLEncoding.DecodeString(head)
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(says), old, by, 1)))
}
