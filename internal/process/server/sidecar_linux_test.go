package server

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// TestSidecar: a caller from 127.0.0.6, the address of Istio's proxy for the mesh, does not count as this machine for the admin
// API and profiles.
func TestSidecar(t *testing.T) {
	for _, tt := range []struct {
		from     string
		reset    codes.Code
		profiles int
	}{
		{"127.0.0.6", codes.PermissionDenied, http.StatusForbidden},
		{"127.0.0.1", codes.PermissionDenied, http.StatusOK}, // may read
	} {
		v := inProcess(t, "ADMIN=true")
		stop := testkit.Run(t, v.Run)
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(tt.from)}}

		conn, err := grpc.NewClient("passthrough:///"+v.listeners.grpc.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }))
		if err != nil {
			t.Fatal(err)
		}
		_, err = adminv1.NewAdminServiceClient(conn).Reset(t.Context(), &adminv1.ResetRequest{Domain: "shop", Entries: []*adminv1.Entry{{Key: "user"}}})
		if got := status.Code(err); got != tt.reset {
			t.Errorf("a reset from %s: %v, want %v", tt.from, err, tt.reset)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}

		transport := &http.Transport{DialContext: d.DialContext}
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+v.listeners.debug.Addr().String()+"/debug/pprof/cmdline", nil)
		if err != nil {
			t.Fatal(err)
		}
		a, err := transport.RoundTrip(q)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(a.Body)
		if a.StatusCode != tt.profiles {
			t.Errorf("a profile from %s: %d %s, want %d", tt.from, a.StatusCode, text, tt.profiles)
		}
		if err := a.Body.Close(); err != nil {
			t.Error(err)
		}
		transport.CloseIdleConnections()
		stop()
	}
}
