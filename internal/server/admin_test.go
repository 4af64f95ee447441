package server

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// elsewhere is a listener to which all seem to come from another machine.
type elsewhere struct{ net.Listener }

func (l elsewhere) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return stranger{c}, err
}

type stranger struct{ net.Conn }

func (stranger) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(203, 0, 113, 5), Port: 5} }

// TestAdminToken: on another machine, the admin API answers callers that know the token of ADMIN_TOKEN_FILE.
func TestAdminToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		env, token string
		want       codes.Code
	}{
		{"ADMIN_TOKEN_FILE=", "sesame", codes.PermissionDenied},
		{"ADMIN_TOKEN_FILE=" + file, "guess", codes.Unauthenticated},
		{"ADMIN_TOKEN_FILE=" + file, "sesame", codes.Unavailable}, // which is the answer while there are no rules,
	} {
		v := inProcess(t, "ADMIN=true", tt.env)
		v.listeners.grpc = elsewhere{v.listeners.grpc}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- v.Run(ctx) }()
		conn, err := grpc.NewClient(v.listeners.grpc.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		_, err = adminv1.NewAdminServiceClient(conn).ListRules(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+tt.token), &adminv1.ListRulesRequest{})
		if got := status.Code(err); got != tt.want {
			t.Errorf("%s, token %s: %v, want %v", tt.env, tt.token, err, tt.want)
		}
		cancel()
		if err := errors.Join(conn.Close(), <-ended); err != nil {
			t.Error(err)
		}
	}
}
