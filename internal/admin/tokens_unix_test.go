//go:build unix

package admin_test

import (
	"path/filepath"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/admin"
)

// TestTokenFileIsAPipe: a file that would have to be waited for lets nobody in, and keeps nobody waiting.
func TestTokenFileIsAPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "token")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	access := admin.Access{TokenFile: pipe, InClear: true}
	if _, err := access.Allow(admin.Caller{Authorization: []string{"Bearer x"}}, false); status.Code(err) != codes.Unauthenticated {
		t.Error(err)
	}
}
