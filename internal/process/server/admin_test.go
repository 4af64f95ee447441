package server

import (
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// TestAdminToken: with ADMIN_TOKEN_FILE the admin API accepts callers with the token. Without it, it accepts only this machine.
func TestAdminToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	testkit.WriteFile(t, file, "sesame\n")
	const clear = "a token that others may have read"
	for _, tt := range []struct {
		env, token string
		want       codes.Code
	}{
		{"ADMIN_TOKEN_FILE=", "sesame", codes.PermissionDenied},
		{"ADMIN_TOKEN_FILE=" + file, "guess", codes.Unauthenticated},
		{"ADMIN_TOKEN_FILE=" + file, "sesame", codes.Unavailable}, // the answer without rules
		{"ADMIN_READ_TOKEN_FILE=" + file, "sesame", codes.Unavailable},
		{clear, "sesame", codes.PermissionDenied},
	} {
		env := []string{"ADMIN=true", "ADMIN_TOKENS_IN_CLEAR=true", tt.env}
		if tt.env == clear {
			env = []string{"ADMIN=true", "ADMIN_TOKEN_FILE=" + file}
		}
		v := inProcess(t, env...)
		v.listeners.grpc = testkit.From(v.listeners.grpc, &net.TCPAddr{IP: net.IPv4(203, 0, 113, 5), Port: 5})
		stop := testkit.Run(t, v.Run)
		conn, err := grpc.NewClient(v.listeners.grpc.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		_, err = adminv1.NewAdminServiceClient(conn).ListRules(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+tt.token), &adminv1.ListRulesRequest{})
		if got := status.Code(err); got != tt.want {
			t.Errorf("%s, token %s: %v, want %v", tt.env, tt.token, err, tt.want)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		stop()
	}
}
