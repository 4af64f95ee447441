package limiter

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Mistake is a probable mistake in a rule, or in the calls for it. The rules do not say how requests are charged, and Envoy's configuration,
// which does, is not known here. So mistakes are found in the calls.
type Mistake uint8

// The mistakes. They are about requests that are charged once they have run.
const (
	Unnamed       Mistake = iota // requests get estimates, and their costs come without an ID: none settles, and both stay consumed
	DroppedCharge                // requests check first, and a charge that did not fit was not counted
	SingleUse                    // requests check first, nearly each on a counter of its own: the limit limits nothing
	mistakes
)

// String returns the mistake as in the label mistake of ratelimitd_mistakes_total.
func (m Mistake) String() string {
	return [mistakes]string{"no_reservation", "dropped_charge", "single_use"}[m]
}

// Advice describes the mistake in the calls for r, and what to change.
func (m Mistake) Advice(r *descriptors.Rule) string {
	return [mistakes]string{
		"requests reserve estimates and none is settled, because their costs come without a reservation ID, so both stay consumed: " +
			settleAdvice(r),
		"charges that exceed the remaining hits are dropped, so requests cost nothing: " +
			"if requests are charged after they have run, " + r.LateChargeAdvice(),
		"no limit applies, because nearly every request has a counter of its own: " +
			"name the entry that differs in each request with reserve and by, or leave it out",
	}[m]
}

// settleAdvice describes how costs settle the reservations of r.
func settleAdvice(r *descriptors.Rule) string {
	if r.Reserve != nil && r.Reserve.By != "" {
		return "give the entry " + r.Reserve.By + " the same value in both calls of a request"
	}
	return "send the ID with the cost, or use reserve with by"
}

// habits is what the calls for a rule show.
type habits struct {
	checks, charges atomic.Uint64
	settled         atomic.Bool // there was a settlement
	singles         singles
	mistakes        [mistakes]atomic.Pointer[count.Counter] // nil before the first one
}

// Mistakes calls f for each rule and each mistake that its calls have shown, with the number of these calls.
func (l *Limiter) Mistakes(f func(r *descriptors.Rule, m Mistake, calls uint64)) {
	s := l.rules.Load()
	if s == nil {
		return
	}
	for r := range s.set.Rules() {
		h := s.rules[r.Index].habits.Load()
		if h == nil {
			continue
		}
		for m := range mistakes {
			n := h.mistakes[m].Load()
			switch { // the rule may have been changed since
			case n == nil, r.Unlimited, (m == Unnamed) != (r.Reserve != nil), m == Unnamed && h.settled.Load():
			case m == DroppedCharge && !r.RateLimits.At(0).Limit.DropsCharges():
			default:
				f(r, m, n.Load())
			}
		}
	}
}

// habit learns from the decided t, which belongs to a rule. Hitless reports whether its descriptor has no hits. A rule is watched from the
// first call on that begins a request to be charged later. Until then, its requests may be charged when they come, where none of this is a
// mistake.
func (c *counts) habit(p *Scratch, t *part, hitless bool) {
	h, op, reserve := t.rule.habits.Load(), &p.ops[t.op], t.Rule.Reserve
	begins := hitless && !t.Negative && (t.reserving == reserves || reserve == nil && t.Hits == 0) // without a number, a request has 1 hit
	switch {
	case h == nil && !begins:
		return
	case h == nil:
		t.rule.habits.CompareAndSwap(nil, new(habits))
		h = t.rule.habits.Load()
	}
	switch {
	case t.reserving == settles: // the usual end of a request that has reserved the estimate
		if op.Decision.Reservation == engine.ReservationSettled && !h.settled.Load() {
			h.settled.Store(true)
		}
	case t.Negative: // a refund
	case reserve != nil && begins: // a reservation
	case reserve != nil: // hits, whose reservation is not named
		if (t.reserving == reserves || t.reserving == charges && reserve.By != "") && !h.settled.Load() {
			c.mistake(h, Unnamed, t.Rule)
		}
	case begins: // a check
		h.checks.Add(1)
		if h.singles.see(op.Key, time.Now(), c.config.SinglesAfter) {
			c.mistake(h, SingleUse, t.Rule)
		}
	default: // the charge at the end of a request that has checked, perhaps on another replica, or a request that has not
		charges := h.charges.Add(1)
		if p.rejected(t) && t.Limits.At(op.Decision.Strictest).Limit.DropsCharges() && 2*h.checks.Load() >= charges {
			c.mistake(h, DroppedCharge, t.Rule)
		}
	}
}

// mistake counts a mistake.
func (c *counts) mistake(h *habits, m Mistake, r *descriptors.Rule) {
	n := h.mistakes[m].Load()
	if n == nil {
		n = c.metrics.Count(Mistakes, m.String(), r.Path)
		h.mistakes[m].Store(n)
	}
	n.Add(1)
}

// When the counters of a rule are taken to be used once each. Ten minutes are long enough for a user to come again: the share of users who
// have called once stays above 95 % only if they call less than about once in 100 minutes each, evenly. Fewer than 1,000 checks say little.
const (
	singlesAfter  = 10 * time.Minute // see [Config]
	singlesWindow = time.Hour        // then the rule is watched again
	singlesChecks = 1000
	singlesOthers = 5   // percent of counters that are used again; with more of them, the rule is left alone until the window ends
	maxSingles    = 512 // counters watched, in 12 KB
)

// singles finds out whether each counter of a rule is used once. It watches a sample of the counters: those whose keys, which are hashes,
// have no bit of mask. So a counter is watched from its first use on, or never.
type singles struct {
	rests atomic.Int64 // until then, in Unix seconds, the rule is not watched

	mu     sync.Mutex
	begun  time.Time
	checks int
	mask   uint64
	seen   map[uint64]bool // whether a counter has been used again
	reused int             // how many of them have
}

// see records a check on a counter. It reports whether the counters of the rule are used once each, as watched for that long.
func (s *singles) see(key backend.Key, now time.Time, after time.Duration) bool {
	if now.Unix() < s.rests.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil || now.Sub(s.begun) >= singlesWindow {
		s.begun, s.checks, s.mask, s.seen, s.reused = now, 0, 0, map[uint64]bool{}, 0
	}
	s.checks++
	if h := binary.LittleEndian.Uint64(key[:]); h&s.mask == 0 {
		again, known := s.seen[h]
		if known && !again {
			s.reused++
		}
		s.seen[h] = known
		if len(s.seen) > maxSingles {
			s.thin()
		}
	}
	switch {
	case s.checks < singlesChecks:
		return false
	case 100*s.reused >= singlesOthers*len(s.seen):
		s.rests.Store(now.Add(singlesWindow).Unix())
		s.seen = nil
		return false
	}
	return now.Sub(s.begun) >= after
}

// thin halves the sample.
func (s *singles) thin() {
	s.mask = s.mask<<1 | 1
	for h, again := range s.seen {
		if h&s.mask == 0 {
			continue
		}
		if delete(s.seen, h); again {
			s.reused--
		}
	}
}
