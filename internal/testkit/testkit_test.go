package testkit_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// failure is the message of a failed test.
type failure string

func (f *failure) Fatalf(format string, args ...any) { *f = failure(fmt.Sprintf(format, args...)) }

// TestEventually checks that the failure message contains the last observed state, and that success is noticed within milliseconds.
func TestEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got failure
		var log testkit.Buffer
		testkit.Eventually(&got, "it rains", func() bool { _, _ = log.Write([]byte(".")); return false }, log.String, func() string { return "dry" })
		if !strings.HasPrefix(string(got), "not within 1m0s: it rains\n......") || !strings.HasSuffix(string(got), ".\ndry") {
			t.Errorf("%.50q…, want what was awaited and what was seen", got)
		}
		begin := time.Now()
		testkit.Eventually(t, "a second passes", func() bool { return time.Since(begin) >= time.Second })
		if took := time.Since(begin); took > time.Second+5*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

// TestStartDaemon checks that the error of a server that ends at the start contains its output.
func TestStartDaemon(t *testing.T) {
	d, err := testkit.StartDaemon(exec.CommandContext(t.Context(), "sh", "-c", "echo no rules >&2; exit 3"))
	if err == nil || !strings.Contains(err.Error(), "exit status 3\nno rules") {
		t.Errorf("%v, %v, want its status and what it said", d, err)
	}
}
