package admin_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// calls has every method, with requests that do something if they are allowed.
func (s *server) calls(ctx context.Context) map[string]error {
	_, list := s.ListRules(ctx, &adminv1.ListRulesRequest{})
	_, explain := s.Explain(ctx, &adminv1.ExplainRequest{
		Domain: "shop", Descriptors: []*adminv1.Descriptor{{Entries: entries("user", "u1")}},
	})
	_, peek := s.Peek(ctx, &adminv1.PeekRequest{Domain: "shop", Entries: entries("user", "u1")})
	_, reset := s.Reset(ctx, &adminv1.ResetRequest{Domain: "shop", Entries: entries("user", "u1"), Force: true})
	other, hour := entries("user", "u9"), durationpb.New(time.Hour)
	_, block := s.Block(ctx, &adminv1.BlockRequest{Domain: "shop", Entries: other, For: hour})
	_, allow := s.Allow(ctx, &adminv1.AllowRequest{Domain: "shop", Entries: other, For: hour})
	_, limit := s.Limit(ctx, &adminv1.LimitRequest{
		Domain: "shop", Entries: other, For: hour, To: &adminv1.Override{RequestsPerUnit: 5, Unit: adminv1.Unit_UNIT_MINUTE},
	})
	_, grant := s.Grant(ctx, &adminv1.GrantRequest{Domain: "shop", Entries: other, Hits: 1})
	_, controls := s.ListControls(ctx, &adminv1.ListControlsRequest{})
	_, audit := s.Audit(ctx, &adminv1.AuditRequest{})
	_, lift := s.Lift(ctx, &adminv1.LiftRequest{Ids: []string{"0123456789abcdef"}})
	if status.Code(lift) == codes.NotFound { // the caller may lift what there is
		lift = nil
	}
	return map[string]error{
		"ListRules": list, "Explain": explain, "Peek": peek, "Reset": reset, "Block": block, "Allow": allow, "Limit": limit, "Grant": grant,
		"ListControls": controls, "Audit": audit, "Lift": lift,
	}
}

// tokenFile is a file with a text.
func tokenFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func bearer(ctx context.Context, authorization ...string) context.Context {
	return metadata.NewOutgoingContext(ctx, metadata.MD{"authorization": authorization})
}

// Without a token file only connections from this machine are answered, whatever a caller says of itself.
func TestAccessRemote(t *testing.T) {
	for _, from := range []net.Addr{
		&net.TCPAddr{IP: net.ParseIP("10.1.2.3"), Port: 4711},
		&net.TCPAddr{IP: net.ParseIP("2001:db8::1"), Port: 4711},
		&net.TCPAddr{IP: net.ParseIP("::ffff:10.1.2.3"), Port: 4711},
		&net.TCPAddr{},
		&net.UDPAddr{IP: net.ParseIP("127.0.0.1")},
	} {
		t.Run(from.String(), func(t *testing.T) {
			s := startOn(t, shop, testkit.From(testkit.Listen(t), from), admin.Config{})
			s.hit(t, "shop", 3, "user", "u1")
			ctx := metadata.AppendToOutgoingContext(bearer(t.Context(), "Bearer x"),
				"x-forwarded-for", "127.0.0.1", "forwarded", "for=127.0.0.1")
			for method, err := range s.calls(ctx) {
				if status.Code(err) != codes.PermissionDenied {
					t.Errorf("%s: %v; want PERMISSION_DENIED", method, err)
				}
			}
			if !s.hit(t, "shop", 1, "user", "u1") {
				t.Error("a denied reset let u1 go")
			}
		})
	}
}

// Without a token file, callers with exactly the address of this machine may look, and no one on a port may change anything. A
// proxy on this machine has another loopback address: Istio's 127.0.0.6.
func TestAccessLocal(t *testing.T) {
	for from, look := range map[string]codes.Code{
		"127.0.0.1":        codes.OK,
		"::1":              codes.OK,
		"::ffff:127.0.0.1": codes.OK,
		"127.0.0.6":        codes.PermissionDenied,
		"127.9.9.9":        codes.PermissionDenied,
		"::ffff:127.0.0.6": codes.PermissionDenied,
		"10.1.2.3":         codes.PermissionDenied,
	} {
		s := startOn(t, shop, testkit.From(testkit.Listen(t), &net.TCPAddr{IP: net.ParseIP(from), Port: 4711}), admin.Config{})
		s.hit(t, "shop", 3, "user", "u1")
		for method, err := range s.calls(bearer(t.Context(), "Bearer x")) {
			want := codes.PermissionDenied
			if slices.Contains([]string{"ListRules", "Explain", "Peek", "ListControls", "Audit"}, method) {
				want = look
			}
			if status.Code(err) != want {
				t.Errorf("%s from %s: %v, want %v", method, from, err, want)
			}
			if look == codes.OK && want != look && !strings.Contains(fmt.Sprint(err), "without --addr, or set ADMIN_TOKEN_FILE") {
				t.Errorf("%s: the error does not say what to do: %v", method, err)
			}
		}
		if !s.hit(t, "shop", 1, "user", "u1") {
			t.Errorf("from %s u1 was reset", from)
		}
	}
}

// On the admin socket callers may do everything; on another unix socket they may look.
func TestAccessUnix(t *testing.T) {
	other := startOn(t, shop, socket(t), admin.Config{Access: access.Policy{Socket: "another"}})
	for method, err := range other.calls(t.Context()) {
		if looks := slices.Contains([]string{"ListRules", "Explain", "Peek", "ListControls", "Audit"}, method); looks != (err == nil) {
			t.Errorf("%s on another socket: %v", method, err)
		}
	}
	s := startOn(t, shop, socket(t), admin.Config{})
	for method, err := range s.calls(t.Context()) {
		if err != nil {
			t.Errorf("%s: %v", method, err)
		}
	}
	if log := s.log.String(); !strings.Contains(log, `by="this machine" from="unix socket"`) {
		t.Errorf("the log does not tell who reset a counter: %q", log)
	}
}

// With a token file everyone needs the token, this machine and its unix sockets too, but for the admin socket.
func TestAccessTokenLocal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, ln := range []net.Listener{testkit.Listen(t), testkit.ListenOn(t, "unix", filepath.Join(t.TempDir(), "s"))} {
		s := startOn(t, shop, ln, admin.Config{Access: access.Policy{TokenFile: file, Socket: "another"}})
		for authorization, want := range map[string]codes.Code{"": codes.Unauthenticated, "Bearer guess": codes.Unauthenticated, "Bearer secret": codes.OK} {
			for method, err := range s.calls(bearer(t.Context(), authorization)) {
				if status.Code(err) != want {
					t.Errorf("%s on %s with %q: %v, want %v", method, ln.Addr().Network(), authorization, err, want)
				}
			}
		}
		if log := s.log.String(); !strings.Contains(log, "by=token") {
			t.Errorf("the log does not tell who reset a counter: %q", log)
		}
	}
}

// Callers are let in with the token that the file currently contains, and only with that.
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
				if err := os.WriteFile(file, []byte(tt.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for method, err := range s.calls(bearer(t.Context(), tt.authorization...)) {
				if status.Code(err) != tt.want {
					t.Errorf("%s: %v; want %v", method, err, tt.want)
				}
				if strings.Contains(fmt.Sprint(err), file) {
					t.Errorf("%s: the error tells a stranger about files: %v", method, err)
				}
			}
		})
	}
	if log := s.log.String(); !strings.Contains(log, "ADMIN_TOKEN_FILE") || strings.Contains(log, "secret") {
		t.Errorf("the log tells of the token, or not of its file: %q", log)
	}
	if log := s.log.String(); !strings.Contains(log, "by=token from=10.1.2.3:4711") {
		t.Errorf("the log does not tell who reset a counter: %q", log)
	}
}

// Where the API is not registered there is none.
func TestNotRegistered(t *testing.T) {
	g, ln := grpc.NewServer(), testkit.Listen(t)
	testkit.Run(t, func(context.Context) error { return g.Serve(ln) })
	conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	s := &server{AdminServiceClient: adminv1.NewAdminServiceClient(conn)}
	for method, err := range s.calls(t.Context()) {
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v; want UNIMPLEMENTED", method, err)
		}
	}
	_ = conn.Close()
	g.Stop()
}
