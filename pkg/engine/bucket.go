package engine

// Token buckets and leaky buckets have the same state: the number of hits consumed, or queued, as of a certain time. From then on they
// come back, or leave, at the rate of the limit that reads the state. So limits of different sizes can share a state: a smaller limit
// sees that more hits were consumed than it would have admitted, and does not change that. However such limits take turns, in any time t
// they admit at most the largest burst plus the largest rate times t.
//
// The count is exact: whole hits, and a fraction of a hit over W' = W/gcd(L, W), where L is the number of hits per window W. In each
// microsecond L'/W' of a hit comes back, with L' = L/gcd(L, W). This is the leaky bucket of ITU-T I.371 as a meter.

// rate is the rate of a limit in lowest terms: den hits in us microseconds.
type rate struct {
	us  uint64 // W', at most 2^48
	den uint64 // L', less than 2^32
}

// rate returns l's rate. It is cached only in limits returned by [Limit.Prepared].
func (l *Limit) rate() rate {
	if l.prepared.hits == l.Hits && l.prepared.window == l.Window {
		return l.prepared.rate
	}
	return rateOf(l.Hits, l.Window)
}

// Rate returns l's rate in lowest terms: den hits in us microseconds, for stores that reproduce the arithmetic of buckets. It is cached
// only in limits returned by [Limit.Prepared]. l.Hits and l.Window must not be 0.
func (l *Limit) Rate() (us, den uint64) {
	r := l.rate()
	return r.us, r.den
}

// rateOf returns the rate in lowest terms.
func rateOf(hits uint64, window Micros) rate {
	w := uint64(window)
	if w%hits == 0 {
		return rate{us: w / hits, den: 1}
	}
	g := gcd(w, hits)
	return rate{us: w / g, den: hits / g}
}

// amount is a number of hits: n, and part/us of another.
type amount struct{ n, part uint64 }

// in returns the hits that come back in a span.
func (r rate) in(span Micros) amount {
	n, part := muldiv(uint64(span), r.den, r.us)
	return amount{n, part}
}

// sub returns a − b, at least 0.
func (r rate) sub(a, b amount) amount {
	switch {
	case a.n < b.n || a.n == b.n && a.part <= b.part:
		return amount{}
	case a.part < b.part:
		return amount{a.n - b.n - 1, a.part + r.us - b.part}
	}
	return amount{a.n - b.n, a.part - b.part}
}

// floor returns the time that a takes to come back in whole microseconds, rounded down, and whether there is a remainder. It caps spans
// at 2^53 µs, which only an amount consumed under another limit can exceed.
func (r rate) floor(a amount) (span Micros, more bool) {
	us, rest := muldiv(a.n, r.us, r.den)
	rest += a.part
	if over := rest / r.den; over > 0 {
		us, rest = us+over, rest-over*r.den
	}
	return Micros(min(us, 1<<53)), rest > 0
}

// up returns the time that a takes to come back in whole microseconds, rounded up.
func (r rate) up(a amount) Micros {
	span, more := r.floor(a)
	if more {
		span++
	}
	return span
}

// mixed marks, in the unit of a queue's fraction, turns promised at different rates.
const mixed = 1 << 63

// bucketView is a bucket's state at a given time.
type bucketView struct {
	rate
	now   Micros
	as    Micros // time up to which hits have come back: now, or the last step before it if tokens arrive in steps
	spent amount // or queued
	end   Micros // time at which the bucket is full, or the last turn of the queue over, for the limit that wrote the state
	seen  bool   // the bucket is not new
	moved bool   // the state was from the future and was moved to now
	mixed bool   // a queue's turns were promised at different rates, or at another than this one
}

// set sets v, which must be zero. For a rate of 0 it does nothing.
func (v *bucketView) set(l *Limit, s *State, now Micros) {
	if l.Hits == 0 {
		return
	}
	v.rate, v.now, v.as = l.rate(), now, l.step(now)
	v.seen = now < s.expires && s.at < s.expires // s.at = s.expires after refunding everything: treat it as new, even if the clock goes back
	switch {
	case v.seen:
		v.read(l, s)
	case l.startsLow():
		v.spent.n = l.Burst - l.Initial
	}
}

// startsLow reports whether l is a bucket whose initial content is less than its burst.
func (l *Limit) startsLow() bool { return l.Algorithm == TokenBucket && l.Initial < l.Burst }

// read sets v from s.
func (v *bucketView) read(l *Limit, s *State) {
	v.end, v.spent = s.full, amount{s.n, s.part}
	if us := s.us &^ mixed; us != v.us {
		v.convert(us)
	}
	switch {
	case s.at > v.now:
		v.moved, v.as = true, v.now
		v.end -= s.at - v.now
	case v.now >= s.full: // full for the limit that wrote s; this one may still need to know that the bucket is not new
		v.spent = amount{}
	case l.Algorithm == LeakyBucket && (s.us&mixed > 0 || s.full-s.at != v.up(v.spent)):
		v.spent = v.sub(v.spent, v.left(v.spent.n, v.now-s.at, s.full-s.at))
	default: // in each period, hits come back at the rate of the limit that reads the state next
		v.as = max(v.as, s.at)
		v.spent = v.sub(v.spent, v.in(v.as-s.at))
	}
	v.mixed = l.Algorithm == LeakyBucket && (s.us&mixed > 0 || v.end-v.now != v.up(v.spent))
}

// left returns the hits that have left a queue after part of a span in which all of them leave evenly. A queue of over 2^48 µs counts as
// not moving, for stores whose arithmetic ends there.
func (r rate) left(hits uint64, part, all Micros) amount {
	if all > maxWindow {
		return amount{}
	}
	n, rest := muldiv(hits, uint64(part), uint64(all))
	parts, _ := muldiv(rest, r.us, uint64(all))
	return amount{n, parts}
}

// convert converts the fraction from units of us, another rate's, to units of v.us, rounded up.
func (v *bucketView) convert(us uint64) {
	if v.spent.part == 0 {
		return
	}
	part, rest := muldiv(v.spent.part, v.us, us)
	if rest > 0 {
		part++
	}
	if part == v.us {
		v.spent.n, part = v.spent.n+1, 0
	}
	v.spent.part = part
}

// most returns the maximum of consumed hits: the burst, plus the debt or, if rejected hits count, a second burst.
func (l *Limit) most() uint64 {
	if l.CountRefused {
		return 2 * l.Burst
	}
	return l.Burst + l.Debt
}

// step returns now or, if tokens arrive in steps, the time of the last step.
func (l *Limit) step(now Micros) Micros {
	if l.FillInterval > 0 {
		return now - now%l.FillInterval
	}
	return now
}

// stepUp returns t or, if tokens arrive in steps, the time of the first step at or after t.
func (l *Limit) stepUp(t Micros) Micros {
	if l.FillInterval == 0 {
		return t
	}
	if over := t % l.FillInterval; over > 0 {
		return t + l.FillInterval - over
	}
	return t
}

// full returns the time at which the bucket is full or the queue empty.
func (v *bucketView) full(l *Limit) Micros {
	if v.mixed {
		return v.end
	}
	return v.atMost(v.back(l, v.spent))
}

// atMost returns the earlier of t and the time at which the bucket is full for the limit that wrote the state.
func (v *bucketView) atMost(t Micros) Micros {
	if v.seen {
		return min(t, v.end)
	}
	return t
}

// back returns the time at which an amount a of the consumed hits has come back.
func (v *bucketView) back(l *Limit, a amount) Micros {
	if a == (amount{}) {
		return v.now
	}
	return l.stepUp(v.as + v.up(a))
}

// below returns the time at which fewer than the given hits are consumed or queued.
func (v *bucketView) below(l *Limit, hits uint64) Micros {
	if v.spent.n < hits {
		return v.now
	}
	span, _ := v.floor(v.sub(v.spent, amount{n: hits}))
	return l.stepUp(v.as + span + 1)
}

// write stores v in s after consuming or refunding hits. A bucket that does not start full must be kept until it has been full for a
// window: if it were dropped, it would start low again.
func (v *bucketView) write(l *Limit, s *State) {
	v.seen, v.end = true, v.back(l, v.spent)
	s.at, s.n, s.part, s.us = v.as, v.spent.n, v.spent.part, v.us
	v.keep(l, s)
}

// keep sets the expiry of s.
func (v *bucketView) keep(l *Limit, s *State) {
	s.full, s.expires = v.end, v.end
	if l.startsLow() {
		s.expires += l.Window
	}
}

// queue adds n requests of cost hits to a queue and stores it in s. After turns promised at other rates, they follow the last of them.
func (v *bucketView) queue(l *Limit, s *State, n, cost uint64) {
	last := v.end + Micros(n)*v.up(amount{n: cost})
	v.spent.n += n * cost
	v.write(l, s)
	if v.mixed {
		s.us |= mixed
		v.end = last
		v.keep(l, s)
	}
}

// move moves s from the future to now, and keeps the rate of the limit that wrote it.
func (v *bucketView) move(s *State) {
	future := s.at - v.now
	s.at, s.full, s.expires = v.now, s.full-future, s.expires-future
}
