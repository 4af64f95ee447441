package shares_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/shares"
)

func TestThin(t *testing.T) {
	for _, n := range []int{1, 3, 10, 100} {
		rate := 20 * uint64(n)
		s := newSim(1, simLimit{Limit: shares.Limit{Hits: rate, Window: second, Burst: 2 * rate}}, 1, n)
		for i, c := range s.clients {
			c.demand = 1.5 * float64(rate) / float64(n) * 2 * (float64(i) + 0.5) / float64(n)
		}
		s.run(s.now + 60*second)
		for k := range 12 {
			to := s.now - 60*second + shares.Micros(k+1)*5*second
			t.Logf("n %d: %d s: %.3f", n, 5*(k+1), s.used(to-5*second, to))
		}
		t.Logf("n %d sent %d peak %.2f s", n, s.sent, s.peak/s.limit.rate())
	}
}
