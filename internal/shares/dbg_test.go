package shares_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/shares"
)

func TestDbg(t *testing.T) {
	n, rate := 60, uint64(600)
	s := newSim(1, simLimit{Limit: shares.Limit{Hits: rate * 60, Window: 60 * second}, mode: shares.Strict}, 3, n)
	s.spread(2.5 * float64(rate))
	s.run(660 * second)
	for range 30 {
		s.run(s.now + 2*second)
		t.Logf("%.2f store %.2f", s.used(s.now-2*second, s.now), s.store.level/float64(rate))
		for _, r := range s.replicas {
			t.Log(r.bucket.Debug())
		}
	}
}
