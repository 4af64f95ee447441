package shares_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/shares"
)

// TestDeadAtEdge: a replica that dies right before the end of a window leaves assignments that last into the next one.
func TestDeadAtEdge(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		n, rate := 60, uint64(600)
		s := newSim(seed, simLimit{Limit: shares.Limit{Hits: rate * 60, Window: 60 * second}, mode: shares.Strict}, 3, n)
		s.spread(2.5 * float64(rate))
		s.run(660*second - second + shares.Micros(seed)*second/10)
		s.replicas[0].dead = true
		s.run(900 * second)
		t.Logf("seed %d: worst %.4f used %.3f", seed, s.worst/float64(rate)/60, s.used(720*second, 900*second))
		if s.worst > float64(rate)*60 {
			t.Errorf("seed %d: %v of %d admitted in a window", seed, s.worst, rate*60)
		}
	}
}
