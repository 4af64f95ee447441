package admin_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// looking lists the methods that change nothing.
var looking = []string{"ListRules", "Explain", "Peek", "ListControls", "Audit", "Top"}

// calls makes the calls of domainCalls that succeed if they are permitted.
func (s *server) calls(t *testing.T, ctx context.Context) map[string]error { //nolint:revive // t comes first
	t.Helper()
	all := map[string]error{}
	for method, q := range domainCalls {
		if q.own != "" && method != "Watch" && method != "Status" {
			_, all[method] = invoke(t, ctx, s.conn, method, q.own)
		}
	}
	return all
}

// tokenFile writes text to a file and returns its path.
func tokenFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	testkit.WriteFile(t, file, text)
	return file
}

func bearer(ctx context.Context, authorization ...string) context.Context {
	return metadata.NewOutgoingContext(ctx, metadata.MD{"authorization": authorization})
}

// TestAccessOnPort: without a token file, callers from exactly 127.0.0.1 or ::1 may read on a port, and no caller may change
// anything, regardless of its headers. A proxy on this machine has another loopback address: Istio's 127.0.0.6.
func TestAccessOnPort(t *testing.T) {
	tcp := func(ip string) *net.TCPAddr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 4711} }
	udp := &net.UDPAddr{IP: net.ParseIP("127.0.0.1")}
	for from, look := range map[net.Addr]codes.Code{
		tcp("127.0.0.1"):        codes.OK,
		tcp("::1"):              codes.OK,
		tcp("::ffff:127.0.0.1"): codes.OK,
		tcp("127.0.0.6"):        codes.PermissionDenied,
		tcp("127.9.9.9"):        codes.PermissionDenied,
		tcp("::ffff:127.0.0.6"): codes.PermissionDenied,
		tcp("10.1.2.3"):         codes.PermissionDenied,
		tcp("2001:db8::1"):      codes.PermissionDenied,
		tcp("::ffff:10.1.2.3"):  codes.PermissionDenied,
		&net.TCPAddr{}:          codes.PermissionDenied,
		udp:                     codes.PermissionDenied,
	} {
		s := startOn(t, shop, testkit.From(testkit.Listen(t), from), admin.Config{})
		s.hit(t, "shop", 3, "user", "u")
		ctx := metadata.AppendToOutgoingContext(bearer(t.Context(), "Bearer x"), "x-forwarded-for", "127.0.0.1", "forwarded", "for=127.0.0.1")
		for method, err := range s.calls(t, ctx) {
			want := codes.PermissionDenied
			if slices.Contains(looking, method) {
				want = look
			}
			if status.Code(err) != want {
				t.Errorf("%s from %s: %v, want %v", method, from, err, want)
			}
			if look == codes.OK && want != look && !strings.Contains(fmt.Sprint(err), "without --addr, or set ADMIN_TOKEN_FILE") {
				t.Errorf("%s: the error lacks advice: %v", method, err)
			}
		}
		if !s.hit(t, "shop", 1, "user", "u") {
			t.Errorf("a caller from %s has reset u", from)
		}
	}
}

// TestAccessUnix: callers on the admin socket have all permissions; callers on another unix socket may read.
func TestAccessUnix(t *testing.T) {
	other := startOn(t, shop, socket(t), admin.Config{Access: access.Policy{Socket: "another"}})
	for method, err := range other.calls(t, t.Context()) {
		if looks := slices.Contains(looking, method); looks != (err == nil) {
			t.Errorf("%s on another socket: %v", method, err)
		}
	}
	s := startOn(t, shop, socket(t), admin.Config{})
	for method, err := range s.calls(t, t.Context()) {
		if err != nil {
			t.Errorf("%s: %v", method, err)
		}
	}
	if log := s.log.String(); !strings.Contains(log, `by="this machine" from="unix socket"`) {
		t.Errorf("the log does not name the caller of the reset: %q", log)
	}
}

// TestAccessTokenLocal: with a token file, all callers need the token, on this machine too, except on the admin socket.
func TestAccessTokenLocal(t *testing.T) {
	file := tokenFile(t, "secret")
	for _, ln := range []net.Listener{testkit.Listen(t), testkit.ListenOn(t, "unix", filepath.Join(t.TempDir(), "s"))} {
		s := startOn(t, shop, ln, admin.Config{Access: access.Policy{TokenFile: file, Socket: "another"}})
		for authorization, want := range map[string]codes.Code{"": codes.Unauthenticated, "Bearer guess": codes.Unauthenticated, "Bearer secret": codes.OK} {
			for method, err := range s.calls(t, bearer(t.Context(), authorization)) {
				if status.Code(err) != want {
					t.Errorf("%s on %s with %q: %v, want %v", method, ln.Addr().Network(), authorization, err, want)
				}
			}
		}
		if log := s.log.String(); !strings.Contains(log, "by=token") {
			t.Errorf("the log does not name the caller of the reset: %q", log)
		}
	}
}

// TestAccessToken: only the current token of the file is accepted.
func TestAccessToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	from := &net.TCPAddr{IP: net.ParseIP("10.1.2.3"), Port: 4711}
	s := startOn(t, shop, testkit.From(testkit.Listen(t), from), admin.Config{Access: access.Policy{TokenFile: file}})
	for _, tt := range []struct {
		name, file    string
		authorization []string
		want          codes.Code
	}{
		{"no file", "", []string{"Bearer secret"}, codes.Unauthenticated},
		{"the token", "secret\n", []string{"Bearer secret"}, codes.OK},
		{"the scheme in another case", "secret\n", []string{"bearer secret"}, codes.OK},
		{"none", "secret\n", nil, codes.Unauthenticated},
		{"a wrong one", "secret\n", []string{"Bearer Secret"}, codes.Unauthenticated},
		{"the beginning of it", "secret\n", []string{"Bearer sec"}, codes.Unauthenticated},
		{"more than it", "secret\n", []string{"Bearer secrets"}, codes.Unauthenticated},
		{"another scheme", "secret\n", []string{"Basic secret"}, codes.Unauthenticated},
		{"no scheme", "secret\n", []string{"secret"}, codes.Unauthenticated},
		{"two", "secret\n", []string{"Bearer secret", "Bearer x"}, codes.Unauthenticated},
		{"rotated, the old one", "other", []string{"Bearer secret"}, codes.Unauthenticated},
		{"rotated, the new one", "other", []string{"Bearer other"}, codes.OK},
		{"an empty file", "\n", []string{"Bearer "}, codes.Unauthenticated},
		{"a huge file", strings.Repeat("x", 5000), []string{"Bearer " + strings.Repeat("x", 5000)}, codes.Unauthenticated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.file != "" {
				testkit.WriteFile(t, file, tt.file)
			}
			for method, err := range s.calls(t, bearer(t.Context(), tt.authorization...)) {
				if status.Code(err) != tt.want {
					t.Errorf("%s: %v; want %v", method, err, tt.want)
				}
				if strings.Contains(fmt.Sprint(err), file) {
					t.Errorf("%s: the error reveals a path to a stranger: %v", method, err)
				}
			}
		})
	}
	if log := s.log.String(); !strings.Contains(log, "ADMIN_TOKEN_FILE") || strings.Contains(log, "secret") {
		t.Errorf("the log has the token, or lacks the variable of its file: %q", log)
	}
	if log := s.log.String(); !strings.Contains(log, "by=token from=10.1.2.3:4711") {
		t.Errorf("the log does not name the caller of the reset: %q", log)
	}
}
