package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// changingCalls returns a request for each method that changes something, by method name.
func changingCalls() map[string]proto.Message {
	about, hour := []*adminv1.Entry{{Key: "user", Value: "ann"}}, durationpb.New(time.Hour)
	return map[string]proto.Message{
		"Block": &adminv1.BlockRequest{Domain: "shop", Entries: about, For: hour},
		"Allow": &adminv1.AllowRequest{Domain: "shop", Entries: about, For: hour},
		"Limit": &adminv1.LimitRequest{
			Domain: "shop", Entries: about, For: hour, To: &adminv1.Override{RequestsPerUnit: 9, Unit: adminv1.Unit_UNIT_YEAR},
		},
		"Grant": &adminv1.GrantRequest{Domain: "shop", Entries: about, Hits: 1},
		"Reset": &adminv1.ResetRequest{Domain: "shop", Entries: about, Force: true},
		"Lift":  &adminv1.LiftRequest{Ids: []string{"0123456789abcdef"}},
	}
}

// stranger is an unauthorized caller of the admin API.
type stranger struct {
	from, to string // addresses without a port; to replaces the listeners' address
	token    string
	headers  []string // of HTTP requests, in addition to the token
}

func (s *stranger) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(s.from)}}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	return d.DialContext(ctx, "tcp", net.JoinHostPort(s.to, port))
}

// overGRPC returns the error of a gRPC call.
func (s *stranger) overGRPC(t *testing.T, d *daemon, method string, q proto.Message) error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+d.At["GRPC"], grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return s.dial(ctx, "tcp", addr) }))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "cookie", "token=full-token")
	if s.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+s.token)
	}
	return conn.Invoke(ctx, "/ratelimitd.admin.v1.AdminService/"+method, q, new(emptypb.Empty))
}

// overHTTP returns the status and the body of an HTTP answer.
func (s *stranger) overHTTP(t *testing.T, d *daemon, method string, q proto.Message) (code int, body string) {
	t.Helper()
	text, err := protojson.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+d.At["DEBUG"]+"/admin/v1/"+strings.ToLower(method), strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Cookie", "token=full-token; authorization=Bearer%20full-token")
	if s.token != "" {
		r.Header.Set("Authorization", "Bearer "+s.token)
	}
	for i := 0; i < len(s.headers); i += 2 {
		if r.Header.Set(s.headers[i], s.headers[i+1]); s.headers[i] == "Host" {
			r.Host = s.headers[i+1]
		}
	}
	transport := &http.Transport{DialContext: s.dial, DisableKeepAlives: true}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(all)
}

// outside returns an address of this machine that is not loopback, or "".
func outside(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return ""
}

// TestStrangersChangeNothing: each changing call is denied and changes nothing without a token, with a read token, with a
// wrong token, from another machine, through a proxy on this machine, and for a web page of another origin.
func TestStrangersChangeNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"full": "ann: full-token\n", "read": "bob: read-token\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	guarded := []string{"ADMIN_TOKEN_FILE=" + filepath.Join(dir, "full"), "ADMIN_READ_TOKEN_FILE=" + filepath.Join(dir, "read")}
	open := []string{"GRPC_HOST=0.0.0.0", "DEBUG_HOST=0.0.0.0"}
	const here = "127.0.0.1"
	page := []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"}
	for _, tt := range []struct {
		name string
		env  []string
		by   stranger
		grpc string // text of the denial; empty for HTTP only
		http string
		code int
	}{
		{"without a token", guarded, stranger{from: here, to: here}, "this requires a token", "this requires a token", 401},
		{"with the read token", guarded, stranger{from: here, to: here, token: "read-token"}, "your access is read-only", "your access is read-only", 403},
		{"with a wrong token", guarded, stranger{from: here, to: here, token: "full-toke"}, "wrong token|token is wrong", "wrong token|token is wrong", 401},
		{"without a token, where others connect", open, stranger{from: here, to: here}, "this is read-only", "this is read-only", 403},
		{"without a token, where no others connect", nil, stranger{from: here, to: here}, "this is read-only", "this is read-only", 403},
		{"from another machine", open, stranger{from: outside(t), to: outside(t)}, "from 127.0.0.1", "from 127.0.0.1", 403},
		{"from another machine with a token in clear", append(open, guarded...), stranger{from: outside(t), to: outside(t), token: "full-token"}, "only over TLS", "only over TLS", 403},
		{"through a proxy", nil, stranger{from: "127.0.0.6", to: here}, "from 127.0.0.1", "from 127.0.0.1", 403},
		{"through another proxy", nil, stranger{from: "127.0.0.2", to: here}, "from 127.0.0.1", "from 127.0.0.1", 403},
		{"from a web page", nil, stranger{from: here, to: here, headers: page}, "", "different origin", 403},
		{"from a web page with the token", guarded, stranger{from: here, to: here, token: "full-token", headers: page}, "", "different origin", 403},
		{"from a page whose name leads here", nil, stranger{from: here, to: here, headers: []string{"Host", "evil.example"}}, "", "under localhost", 403},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.by.from == "" {
				return // this machine has only loopback addresses
			}
			d := startProcess(t, controlRules, append([]string{"ADMIN=true"}, tt.env...)...)
			caller := controlled{d, d.client()}
			caller.over("user", "ann")
			var calls sync.WaitGroup // concurrent, because answers to wrong tokens are delayed
			for method, q := range changingCalls() {
				if tt.grpc != "" {
					calls.Go(func() {
						err := tt.by.overGRPC(t, d, method, q)
						if text := status.Convert(err).Message(); err == nil || !oneOf(text, tt.grpc) {
							t.Errorf("%s over gRPC: %v; want %q", method, err, tt.grpc)
						}
					})
				}
				calls.Go(func() {
					code, body := tt.by.overHTTP(t, d, method, q)
					if !oneOf(body, tt.http) || code != tt.code && code != 429 {
						t.Errorf("%s over HTTP: %d %s; want %d with %q", method, code, body, tt.code, tt.http)
					}
				})
			}
			calls.Wait()
			if got := d.metric("ratelimitd_admin_denied_total"); tt.grpc != "" && got != float64(2*len(changingCalls())) {
				t.Errorf("%v calls are counted as denied", got)
			}
			if d.metric(`ratelimitd_controls{kind="block"}`)+d.metric(`ratelimitd_controls{kind="allow"}`)+d.metric(`ratelimitd_controls{kind="limit"}`) != 0 {
				t.Error("a control is in force")
			}
			caller.over("user", "ann")
			caller.over("user", "ann")
			if !caller.over("user", "ann") {
				t.Error("the counter has changed")
			}
			if tt.grpc != "" && !strings.Contains(d.Log.String(), `"@message":"a change failed"`) {
				t.Error("the log says nothing")
			}
		})
	}
}

// oneOf reports whether text contains one of the texts, which are separated by bars.
func oneOf(text, texts string) bool {
	for want := range strings.SplitSeq(texts, "|") {
		if strings.Contains(text, want) {
			return true
		}
	}
	return false
}
