package shares_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/shares"
)

func TestDbg(t *testing.T) {
	n, rate := 100, uint64(1000)
	s := newSim(7, simLimit{Limit: shares.Limit{Hits: rate * 60, Window: 60 * second}, mode: shares.Strict}, 1, n)
	s.spread(1.5 * float64(rate))
	s.run(s.now + 120*second)
	for range 60 {
		s.run(s.now + 1*second)
		t.Log(s.used(s.now-1*second, s.now), s.replicas[0].bucket.Debug())
	}
}
