package shares_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
)

// TestBelow: clients of the same demand, of at most 80 % of the limit in total, start, restart, lose their streams, pause, resume and stop
// at random, and replicas are replaced. They are denied nothing. Of more histories, about one in 200 has denials: see docs/rlqs.md.
func TestBelow(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 3))
		most, replicas := 1+random.IntN(5), random.IntN(3)
		each := 80 / float64(most)
		s := fleet(shop, replicas, each)
		var log []string
		active := func() (all []int) {
			for i, c := range s.clients {
				if c.alive {
					all = append(all, i)
				}
			}
			return all
		}
		live := func() int {
			for {
				if i := random.IntN(len(s.replicas)); !s.replicas[i].dead {
					return i
				}
			}
		}
		for range 12 {
			all := active()
			i := -1
			if len(all) > 0 {
				i = all[random.IntN(len(all))]
			}
			what := ""
			before := s.deniedAll()
			switch kind := random.IntN(7); {
			case kind == 0 && i >= 0:
				what = "restart"
				s.restart(i, shares.Micros(random.Int64N(int64(3*second))), live())
			case kind == 1 && i >= 0:
				what = "pause or resume"
				if s.clients[i].demand > 0 {
					s.clients[i].demand = 0
				} else {
					s.clients[i].demand = each
				}
			case kind == 2 && i >= 0:
				what = "stop"
				c := s.clients[i]
				s.replicas[c.replica].bucket.Leave(s.now, c.client.ID)
				c.alive, c.open, c.inbox, c.demand = false, false, nil, 0
			case kind == 3 && replicas > 0:
				what = "replica"
				old := live()
				s.replicas = append(s.replicas, s.newReplica())
				s.drain(old)
			case kind == 4 && i >= 0 && s.clients[i].open:
				what = "break"
				c := s.clients[i]
				s.replicas[c.replica].bucket.Leave(s.now, c.client.ID)
				c.open, c.inbox = false, nil
			case len(all) < most:
				what = "start"
				c := s.join()
				c.demand, c.replica, c.named = each, live(), random.IntN(2) > 0
			}
			s.run(s.now + shares.Micros(random.Int64N(int64(12*second))))
			log = append(log, fmt.Sprintf("%s %d: %.0f", what, i, s.deniedAll()-before))
		}
		if d := s.deniedAll(); d > 0 {
			t.Errorf("seed %d, %d clients, %d replicas: %.0f denied: %v", seed, most, replicas, d, log)
		}
	}
}
