package shares_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/shares"
)

func TestDbg(t *testing.T) {
	n, rate := 10, uint64(100)
	s := newSim(7, simLimit{Limit: shares.Limit{Hits: rate * 60, Window: 60 * second}, mode: shares.Strict}, 1, n)
	s.spread(1.5 * float64(rate))
	for range 40 {
		s.run(s.now + 2*second)
		t.Log(s.used(s.now-2*second, s.now), s.store.level, s.replicas[0].bucket.Debug())
	}
}
