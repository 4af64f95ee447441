package shares_test

import (
	"math"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
)

// disturb causes one random event.
func (s *sim) disturb() {
	c := s.clients[s.rand.IntN(len(s.clients))]
	switch s.rand.IntN(15) {
	case 0, 1: // a demand jumps
		c.demand = s.limit.rate() * math.Exp(s.rand.NormFloat64()) / float64(len(s.clients))
	case 2: // two clients swap demands
		d := s.clients[s.rand.IntN(len(s.clients))]
		c.demand, d.demand = d.demand, c.demand
	case 3: // a flood
		c.demand = 3 * s.limit.rate()
	case 4:
		c.demand = 0
	case 5:
		s.join().demand = c.demand
	case 6: // a client dies
		c.alive = len(s.clients) < 3
		s.hangUp(c)
	case 7: // messages are delayed
		s.hangUp(c)
	case 8: // messages are late
		most := s.rand.Int64N(int64(s.late)) + 1000
		s.delay = func() shares.Micros { return shares.Micros(s.rand.Int64N(most)) }
	case 9:
		s.delay = s.fast
	case 10: // a replica dies, and may be replaced by one without state
		if s.limit.mode == shares.Fast || !s.store.down { // otherwise its debts would never be debited
			s.kill(s.rand.IntN(len(s.replicas)))
		}
	case 11: // a clock jumps
		r := s.replicas[s.rand.IntN(len(s.replicas))]
		r.skew += shares.Micros(s.rand.NormFloat64() * float64(30*second))
	case 12:
		s.store.down = true
	case 13, 14:
		for _, r := range s.replicas {
			if s.store.down && !r.dead {
				s.begun = append(s.begun, s.now)
			}
		}
		s.store.down = false
	}
}

// hangUp ends the stream of a client. Its replica may not notice.
func (s *sim) hangUp(c *simClient) {
	if r := s.replicas[c.replica]; c.open && s.rand.IntN(2) == 0 {
		r.bucket.Leave(s.now+r.skew, c.client.ID)
	}
	c.open, c.inbox = false, nil
}

// kill ends a replica. Most of its clients notice immediately, the others at their next report.
func (s *sim) kill(i int) {
	s.replicas[i].dead = true
	for _, c := range s.clients {
		if c.replica == i && s.rand.IntN(4) > 0 {
			c.open, c.inbox = false, nil
		}
	}
	alive := slices.ContainsFunc(s.replicas, func(r *simReplica) bool { return !r.dead })
	if !alive || s.rand.IntN(2) == 0 {
		s.replicas = append(s.replicas, s.newReplica())
	}
}

// believe adds to E the hits that clients may use beyond their replica's knowledge, because a message is late or lost.
func (s *sim) believe() {
	const every = 4 // slices
	if s.limit.mode == shares.Strict || !s.chaos || len(s.admitted)%every != 0 {
		return
	}
	span := every * float64(slice) / float64(second)
	for _, c := range s.clients {
		c.held = 0
	}
	held, unreached, capacity := 0.0, 0.0, 0.0
	for _, r := range s.replicas {
		if r.dead {
			continue
		}
		for _, h := range r.bucket.Holders() {
			s.client(h.ID).held += h.Held
			if held += h.Held; h.State == "disconnected" {
				unreached += h.Held
			}
		}
		capacity = max(capacity, r.bucket.Status().Capacity)
	}
	s.extra += min(unreached, max(0, held-capacity)) * span
	sum := 0.0
	for _, c := range s.clients {
		rate := c.envoy.Rate(s.now)
		sum += rate
		s.extra += max(0, rate-c.held) * span
	}
	if s.store.down { // shares stay the same, and the bucket in the store fills
		s.extra += max(0, sum-s.limit.rate()) * span
		fills := min(sum*span, float64(s.limit.Burst)-s.filled)
		s.filled += fills
		s.extra += min(fills, s.limit.rate()*span)
	} else {
		s.filled = 0
	}
}
