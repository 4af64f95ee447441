package shares_test

import (
	"math"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/shares"
)

func TestDbg(t *testing.T) {
			seed := uint64(35)
			s := newSim(seed, simLimit{}, 1, 0)
			n := int(math.Exp(s.rand.Float64() * math.Log(300)))
			rate := uint64(float64(n) * (5 + 15*s.rand.Float64()))
			l := simLimit{Limit: shares.Limit{Hits: rate, Window: second, Burst: 2 * rate}}
			s = newSim(seed, l, 1, n)
			s.chaos = true
			s.slowest = 2*second
			s.spread(float64(rate) * (0.5 + 2*s.rand.Float64()))
			end := s.now + 180*second
			last := 0.0
			next := s.now
			t.Log(n, rate)
			for s.now < end {
				to := s.now + shares.Micros(s.rand.Int64N(int64(4*second)))
				for s.now < to {
					s.run(s.now+slice)
					if s.unbound > last || s.now >= next {
						next = s.now+second
						r := float64(rate)
						actual, alive := 0.0, 0
						for _, c := range s.clients { actual += c.envoy.Rate(s.now); if c.alive { alive++ } }
						t.Logf("%.2f over %.3f extra %.3f unbound %.3f level %.3f actual %.2f alive %d %s", float64(s.now)/1e6-600, s.over/r-2, s.extra/r, s.unbound/r, s.store.level/r, actual/r, alive, s.replicas[0].bucket.Debug())
						last = s.unbound
					}
				}
				s.disturb()
			}
}
