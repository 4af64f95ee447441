package shares_test

import (
	"math"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/shares"
)

func TestStrictThin(t *testing.T) {
	for _, w := range []shares.Micros{60} {
		for _, load := range []float64{1.5} {
			low, high, sum, sent, num := 2.0, 0.0, 0.0, 0.0, 0.0
			for seed := range uint64(40) {
				s := newSim(seed, simLimit{}, 1, 0)
				n := int(math.Exp(s.rand.Float64() * math.Log(300)))
				rate := uint64(float64(n) * (5 + 15*s.rand.Float64()))
				s = newSim(seed, simLimit{Limit: shares.Limit{Hits: rate * uint64(w), Window: w * second}, mode: shares.Strict}, 1, n)
				s.spread(load * float64(rate))
				s.run(s.now + w*second)
				for range 3 {
					s.run(s.now + w*second)
					u := s.used(s.now-w*second, s.now)
					low, sum, num = min(low, u), sum+u, num+1
				}
				high = max(high, s.worst/float64(rate)/float64(w))
				sent += float64(s.sent) / 4 / float64(w) / float64(n)
			}
			t.Logf("window %d load %.1f: used least %.3f mean %.3f, worst %.4f, sent %.2f", w, load, low, sum/num, high, sent/40)
		}
	}
}
