//go:build unix

package access_test

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestTokenFileIsAPipe: a pipe as the token file is an error and does not block.
func TestTokenFileIsAPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "token")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	policy := access.Policy{TokenFile: pipe, InClear: true}
	if _, err := policy.Allow(access.Caller{Authorization: []string{"Bearer x"}}, false); status.Code(err) != codes.Unauthenticated {
		t.Error(err)
	}
}

// TestTokenFileIsParsedOnce: a token is cheap to check with many tokens, and a changed file takes effect immediately.
func TestTokenFileIsParsedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // wrong tokens are delayed
		file := filepath.Join(t.TempDir(), "tokens")
		policy := access.Policy{TokenFile: file, InClear: true, Guard: access.NewGuard(nil)}
		look := func(token string) codes.Code {
			_, err := policy.Allow(access.Caller{Authorization: []string{"Bearer " + token}}, true)
			return status.Code(err)
		}
		for round, text := range []string{"", "two words\n", ""} {
			for i := range 1000 {
				text += fmt.Sprintf("u%d: token-%d-%d\n", i, i, round)
			}
			testkit.WriteFile(t, file, text)
			for of := range 3 {
				want := codes.Unauthenticated
				if of == round && text[0] == 'u' {
					want = codes.OK
				}
				if got := look(fmt.Sprintf("token-999-%d", of)); got != want {
					t.Errorf("token of round %d: %v in round %d, want %v", of, got, round, want)
				}
			}
		}
		if n := testing.AllocsPerRun(10, func() { look("token-999-2") }); n > 100 {
			t.Errorf("a call allocates %v times", n)
		}
	})
}
