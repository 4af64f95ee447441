package engine

// A token bucket and a leaky bucket keep the same state, one timestamp: the time at which the bucket is full again, or
// the queue is empty. The span from now to that time is the wait; measured in hits, it is what has been used.
//
// The timestamp is exact: whole microseconds and a numerator over L' = L/gcd(L, W), where L is hits per window W. One hit
// lasts W'/L' microseconds, with W' = W/gcd(L, W). It is the generic cell rate algorithm (ITU-T I.371).

// rate is the rate of a limit in lowest terms: den hits in us microseconds.
type rate struct {
	us  uint64 // W', at most 2^48
	den uint64 // L', less than 2^32
}

// rate returns l's rate. It is computed anew each time unless l comes from [Limit.Prepared].
func (l *Limit) rate() rate {
	if l.prepared.hits == l.Hits && l.prepared.window == l.Window {
		return l.prepared.rate
	}
	return rateOf(l.Hits, l.Window)
}

// Rate returns l's rate in lowest terms: den hits in us microseconds, for stores that repeat the arithmetic of buckets.
// It is computed anew each time unless l comes from [Limit.Prepared]. l.Hits and l.Window must not be 0.
func (l *Limit) Rate() (us, den uint64) {
	r := l.rate()
	return r.us, r.den
}

func rateOf(hits uint64, window Micros) rate {
	w := uint64(window)
	if w%hits == 0 {
		return rate{us: w / hits, den: 1}
	}
	g := gcd(w, hits)
	return rate{us: w / g, den: hits / g}
}

// span is a length of time: us + num/L' microseconds.
type span struct{ us, num uint64 }

// of returns how long hits last.
func (r rate) of(hits uint64) span {
	if r.den == 1 {
		return span{us: hits * r.us}
	}
	us, num := muldiv(hits, r.us, r.den)
	return span{us, num}
}

// hits returns how many whole hits fit into t, and whether there is a remainder.
func (r rate) hits(t span) (whole uint64, more bool) {
	if r.den == 1 {
		whole = t.us / r.us
		return whole, whole*r.us != t.us
	}
	quo, rem := muldiv(t.us, r.den, r.us)
	rem += t.num
	return quo + rem/r.us, rem%r.us != 0
}

// add returns t + u.
func (r rate) add(t, u span) span {
	t.us += u.us
	t.num += u.num
	if t.num >= r.den {
		t.num -= r.den
		t.us++
	}
	return t
}

// sub returns t − u, at least 0.
func (r rate) sub(t, u span) span {
	if t.less(u) {
		return span{}
	}
	t.us -= u.us
	if t.num < u.num {
		t.num += r.den
		t.us--
	}
	t.num -= u.num
	return t
}

func (t span) less(u span) bool { return t.us < u.us || t.us == u.us && t.num < u.num }

// up returns t in whole microseconds, rounded up.
func (t span) up() Micros {
	if t.num > 0 {
		return Micros(t.us) + 1
	}
	return Micros(t.us)
}

// over returns the first whole microsecond after t.
func (t span) over() Micros { return Micros(t.us) + 1 }

// bucketView is the state of a bucket as seen at a given time.
type bucketView struct {
	rate
	base  Micros // now, or the last time before it at which tokens arrived, if they come in steps
	wait  span   // from base until full, or empty
	used  uint64 // the wait in hits, rounded down
	more  bool   // used was rounded down
	seen  bool   // the key was seen before
	moved bool   // the state was from the future, and was moved to now
}

// set fills in v, which is zero. A rate of 0 leaves it zero.
func (v *bucketView) set(l *Limit, s *State, now Micros) {
	if l.Hits == 0 {
		return
	}
	v.rate, v.base, v.seen = l.rate(), l.step(now), now < s.expires
	switch {
	case !v.seen && l.Initial < l.Burst && l.Algorithm == TokenBucket:
		v.wait, v.used = v.of(l.Burst-l.Initial), l.Burst-l.Initial
		return
	case !v.seen || s.at < v.base:
		return
	}
	v.wait = span{us: uint64(s.at - v.base), num: s.n}
	if uint64(s.den) != v.den && v.wait.num > 0 {
		v.wait = span{us: v.wait.us + 1}
	}
	v.used, v.more = v.hits(v.wait)
	most := l.Burst + l.depth()
	if v.used > most || v.used == most && (v.more || l.Algorithm == LeakyBucket) {
		v.wait, v.moved = v.longest(l), true
		v.used, v.more = v.hits(v.wait)
	}
}

// longest returns the longest wait that a state not from the future can have. For a queue that is the smallest possible
// step less than the time that Burst + 1 hits last.
func (v *bucketView) longest(l *Limit) span {
	t := v.of(l.Burst + l.depth())
	switch {
	case l.Algorithm != LeakyBucket:
		return t
	case v.den == 1:
		return v.sub(t, span{us: 1})
	}
	return v.sub(t, span{num: 1})
}

// depth returns how many hits beyond Burst the timestamp may be ahead of now (for a leaky bucket, less than that); one
// that is further ahead comes from the future.
func (l *Limit) depth() uint64 {
	switch {
	case l.Algorithm == LeakyBucket:
		return 1
	case l.CountRefused:
		return l.Burst
	}
	return l.Debt
}

// step returns now or, where tokens come in steps, the last time at which some came.
func (l *Limit) step(now Micros) Micros {
	if l.FillInterval > 0 {
		return now - now%l.FillInterval
	}
	return now
}

// stepUp returns the first time at or after t at which tokens come.
func (l *Limit) stepUp(t Micros) Micros {
	if l.FillInterval == 0 {
		return t
	}
	if over := t % l.FillInterval; over > 0 {
		return t + l.FillInterval - over
	}
	return t
}

// full returns when the bucket is full, or the queue empty.
func (v *bucketView) full(l *Limit) Micros {
	return l.stepUp(v.base + v.wait.up())
}

// write stores v in s. A bucket that does not start full has to be remembered for longer than it takes to fill, namely
// until it has been full for a window: once it is forgotten it would start low again.
func (v *bucketView) write(l *Limit, s *State, now Micros) {
	s.at, s.n, s.den = v.base+Micros(v.wait.us), v.wait.num, uint32(v.den)
	s.expires = max(v.full(l), now)
	if l.Algorithm == TokenBucket && l.Initial < l.Burst {
		s.expires += l.Window
	}
}
