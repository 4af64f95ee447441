package shares_test

import (
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/shares"
)

// demands draws demands that add up to a total.
func (s *sim) spread(total float64) {
	sum := 0.0
	for _, c := range s.clients {
		if c.alive {
			c.demand = math.Exp(s.rand.NormFloat64())
			sum += c.demand
		}
	}
	for _, c := range s.clients {
		c.demand *= total / sum
	}
}

func TestReach(t *testing.T) {
	seeds := 100
	if os.Getenv("SEEDS") != "" {
		fmt.Sscan(os.Getenv("SEEDS"), &seeds)
	}
	replicas := 1
	if os.Getenv("REPLICAS") != "" {
		fmt.Sscan(os.Getenv("REPLICAS"), &replicas)
	}
	for _, kind := range []string{"jump", "one", "swap", "steady"} {
		var times, peaks, steady, sent, unbound []float64
		late := 0
		for seed := range uint64(seeds) {
			s := newSim(seed, simLimit{}, replicas, 0)
			n := int(math.Exp(s.rand.Float64() * math.Log(1000)))
			if kind == "swap" {
				n = max(n, 2)
			}
			rate := uint64(float64(n) * (5 + 15*s.rand.Float64()))
			s = newSim(seed, simLimit{Limit: shares.Limit{Hits: rate, Window: second, Burst: 2 * rate}}, replicas, n)
			r := float64(rate)
			switch kind {
			case "jump", "steady":
				s.spread(0.6 * r)
			case "one":
				s.spread(0.6 * r)
			case "swap":
				s.spread(0.6 * r)
				for i, c := range s.clients {
					if c.demand = 1.9 * r / float64(n/2); i < n/2 {
						continue
					}
					c.demand = 0.1 * r / float64(n-n/2)
				}
			}
			s.run(s.now + 30*second)
			at := s.now
			switch kind {
			case "jump":
				for _, c := range s.clients {
					c.demand *= 2 / 0.6
				}
			case "one":
				s.clients[0].demand += 0.6 * r
			case "swap":
				for i, c := range s.clients {
					if c.demand = 0.1 * r / float64(n/2); i < n/2 {
						continue
					}
					c.demand = 1.9 * r / float64(n-n/2)
				}
			case "steady":
				s.spread(1.5 * r)
				s.run(s.now + 30*second)
				at = s.now
			}
			s.run(s.now + 30*second)
			x := 0.0
			if kind == "steady" {
				steady = append(steady, s.used(at, s.now))
			} else {
				x = s.reaches(at+second/5) + 0.2
				times = append(times, x)
				if x > 10.2 {
					late++
					if late < 8 {
						t.Logf("%s seed %d n %d rate %d: %.2f", kind, seed, n, rate, x)
					}
				}
			}
			peaks = append(peaks, (s.peak-2*r)/r)
			unbound = append(unbound, s.unbound/r)
			sent = append(sent, float64(s.sent)/float64(n)/float64((s.now-600*second)/second))
		}
		q := func(v []float64) string {
			if len(v) == 0 {
				return "-"
			}
			slices.Sort(v)
			return fmt.Sprintf("%.2f/%.2f/%.2f/%.2f/%.2f", v[0], v[len(v)/2], v[len(v)*9/10], v[len(v)*99/100], v[len(v)-1])
		}
		t.Logf("%s: times %s late %d; steady %s, peak over B %s s, unbound %s, msgs/s %s", kind, q(times), late, q(steady), q(peaks), q(unbound), q(sent))
	}
}
