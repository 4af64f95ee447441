//go:build unix

package admin_test

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestTokenFileIsAPipe: a file that would have to be waited for lets no one in, and keeps no one waiting.
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

// TestTokenFileIsParsedOnce: a token costs little to look at, however many there are, and counts as soon as it is in the file.
func TestTokenFileIsParsedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // wrong ones are waited for
		file := filepath.Join(t.TempDir(), "tokens")
		access := admin.Access{TokenFile: file, InClear: true, Guard: admin.NewGuard(nil)}
		look := func(token string) codes.Code {
			_, err := access.Allow(admin.Caller{Authorization: []string{"Bearer " + token}}, true)
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
					t.Errorf("the token of round %d is %v in round %d, want %v", of, got, round, want)
				}
			}
		}
		if n := testing.AllocsPerRun(10, func() { look("token-999-2") }); n > 100 {
			t.Errorf("a call allocates %v times", n)
		}
	})
}
