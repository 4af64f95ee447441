package shares_test

import (
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/shares"
)

// disturb lets one thing happen.
func (s *sim) disturb() {
	c := s.clients[s.rand.IntN(len(s.clients))]
	switch s.rand.IntN(10 + s.kinds) {
	case 0, 1: // demand jumps
		c.demand = s.limit.rate() * math.Exp(s.rand.NormFloat64()) / float64(len(s.clients))
	case 2: // two swap
		d := s.clients[s.rand.IntN(len(s.clients))]
		c.demand, d.demand = d.demand, c.demand
	case 3: // a flood
		c.demand = 3 * s.limit.rate()
	case 4: // one is idle
		c.demand = 0
	case 5:
		if len(s.clients) < 1200 {
			d := s.join()
			d.demand = c.demand
		}
	case 6: // a client dies; its replica sees it or does not
		if c.alive = len(s.clients) < 3; !c.alive && s.rand.IntN(2) == 0 {
			s.replicas[c.replica].bucket.Leave(s.time(c.replica), c.client.ID)
		}
	case 7: // a stream breaks
		if c.open {
			c.open, c.inbox = false, nil
			if s.rand.IntN(2) == 0 {
				s.replicas[c.replica].bucket.Leave(s.time(c.replica), c.client.ID)
			}
		}
	case 8: // messages are late
		most := s.rand.Int64N(int64(s.slowest))
		s.delay = func() shares.Micros { return shares.Micros(s.rand.Int64N(most + 1000)) }
	case 10: // a replica dies, and another one starts without state
		i := s.rand.IntN(len(s.replicas))
		s.replicas[i].dead = true
		for _, c := range s.clients {
			if c.replica == i && s.rand.IntN(4) > 0 { // most of its clients see it at once
				c.open, c.inbox = false, nil
			}
		}
		if r := s.newReplica(); s.rand.IntN(2) == 0 || s.allDead() {
			s.replicas = append(s.replicas, r)
		}
	case 11: // a clock jumps
		r := s.replicas[s.rand.IntN(len(s.replicas))]
		r.skew += shares.Micros(s.rand.NormFloat64() * float64(30*second))
	case 12:
		s.store.down = !s.store.down
	case 13, 14:
		s.store.down = false
	case 9:
		s.delay = func() shares.Micros { return second/1000 + shares.Micros(s.rand.ExpFloat64()*2000) }
	}
}

func (s *sim) allDead() bool {
	return !slices.ContainsFunc(s.replicas, func(r *simReplica) bool { return !r.dead })
}

func (s *sim) time(replica int) shares.Micros { return s.now + s.replicas[replica].skew }

func TestChaosThin(t *testing.T) {
	seeds := 100
	if os.Getenv("SEEDS") != "" {
		fmt.Sscan(os.Getenv("SEEDS"), &seeds)
	}
	replicas := 1
	if os.Getenv("REPLICAS") != "" {
		fmt.Sscan(os.Getenv("REPLICAS"), &replicas)
	}
	for _, mode := range []shares.Mode{shares.Fast, shares.Strict} {
		if os.Getenv("MODE") != "" && os.Getenv("MODE") != fmt.Sprint(mode) {
			continue
		}
		worst, over, wseed, oseed := 0.0, math.Inf(-1), uint64(0), uint64(0)
		use, peak := 0.0, math.Inf(-1)
		for seed := range uint64(seeds) {
			s := newSim(seed, simLimit{}, 1, 0)
			n := int(math.Exp(s.rand.Float64() * math.Log(300)))
			rate := uint64(float64(n) * (5 + 15*s.rand.Float64()))
			l := simLimit{Limit: shares.Limit{Hits: rate, Window: second, Burst: 2 * rate}}
			if mode == shares.Strict {
				l = simLimit{Limit: shares.Limit{Hits: rate * 60, Window: 60 * second}, mode: mode}
			}
			s = newSim(seed, l, replicas, n)
			s.chaos = true
			s.slowest = second / 2
			if os.Getenv("SLOW") != "" {
				s.slowest = 2 * second
			}
			if os.Getenv("KINDS") != "" {
				fmt.Sscan(os.Getenv("KINDS"), &s.kinds)
			}
			s.spread(float64(rate) * (0.5 + 2*s.rand.Float64()))
			end := s.now + 180*second
			for s.now < end {
				s.run(s.now + shares.Micros(s.rand.Int64N(int64(4*second))))
				s.disturb()
			}
			if s.unbound/float64(rate) > over {
				over, oseed = s.unbound/float64(rate), seed
			}
			peak = max(peak, s.peak/float64(rate)-2)
			use += s.used(end-180*second, end)
			if mode == shares.Strict && s.worst/float64(rate)/60 > worst {
				worst, wseed = s.worst/float64(rate)/60, seed
			}
		}
		t.Logf("mode %d: worst window %.4f (seed %d), beyond bound %.3f s (seed %d), peak over B %.2f used %.3f", mode, worst, wseed, over, oseed, peak, use/float64(seeds))
	}
}
