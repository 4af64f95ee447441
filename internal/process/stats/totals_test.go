package stats_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/process/stats"
)

// TestTotals: totals count calls over gRPC and /json between two readings.
func TestTotals(t *testing.T) {
	for _, r := range []*stats.Registry{stats.New(), stats.NewMilliseconds()} {
		r.ObserveCall("ShouldRateLimit", 5)
		before := r.Totals("ShouldRateLimit")
		for range 49 {
			r.ObserveCall("ShouldRateLimit", 0.001)
			r.ObserveJSON(0.001)
		}
		r.ObserveCall("ShouldRateLimit", 0.1)
		r.ObserveCall("ShouldRateLimit", 0.1)
		r.ObserveCall("Check", 9)
		now := r.Totals("ShouldRateLimit")
		if now.Calls != 101 {
			t.Errorf("%d calls, want 101", now.Calls)
		}
		for share, want := range map[float64]float64{0.5: 0.001, 0.98: 0.001, 0.99: 0.1} {
			if got := now.Within(&before, share); got < want*0.91 || got > want*1.1 {
				t.Errorf("%v of the calls took at most %v s, want about %v", share, got, want)
			}
		}
		if got := now.Within(&now, 0.99); got != 0 {
			t.Errorf("no calls took %v s", got)
		}
	}
}
