package server

import (
	"github.com/ratelimitd/ratelimitd/internal/overload"
	"github.com/ratelimitd/ratelimitd/internal/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// maxCalls is how many calls of ShouldRateLimit may be in progress.
const maxCalls = 16_384

// newGate returns the gate through which all calls come, and shows what it does.
func newGate(r *stats.Registry) *overload.Gate {
	g := overload.New(overload.Config{MaxCalls: maxCalls, Patience: remote.DefaultOpTimeout})
	r.Source(func(v *stats.Values) {
		now := g.Stats()
		v.Gauge(stats.Calls, float64(now.Calls))
		v.Gauge(stats.CallsLimit, float64(now.Limit))
		v.Gauge(stats.CallsWait, now.Wait.Seconds())
	})
	return g
}
