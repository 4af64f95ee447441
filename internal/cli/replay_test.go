package cli

import (
	"testing"
	"time"
)

func TestProgressText(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"[###############...............]  50 %  1000 lines, 500 per second, 2s left": progressText(50, 100, 1000, 2*time.Second),
		"[##############################] 100 %  7 lines, 7 per second, 0s left":      progressText(200, 100, 7, time.Second),
		"1000 lines, 500 per second": progressText(50, 0, 1000, 2*time.Second),
		"0 lines, 0 per second":      progressText(0, 100, 0, 0),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
