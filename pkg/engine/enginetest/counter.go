package enginetest

import (
	"maps"
	"math/big"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// counter is the state that the model keeps for one limit.
type counter struct {
	fixed  fixed
	hits   hits
	bucket bucket
	slots  slots
	until  engine.Micros // time from which the counter is irrelevant; 0 for a new key
}

// at returns a copy of the counter of l, brought up to date.
func (m *Model) at(l *engine.Limit, now engine.Micros) *counter {
	c := m.counters[l.Slot()]
	if now >= c.until || c.bucket.last >= c.until { // a refund at any time can empty a bucket
		c = counter{}
	}
	switch l.Algorithm {
	case engine.FixedWindow:
		if m.windows == nil {
			m.windows = windows{}
		}
		c.fixed = c.fixed.at(l, now, c.seen(), m.windows)
	case engine.SlidingWindow, engine.SlidingLog:
		c.hits = c.hits.at(l, now)
	case engine.TokenBucket, engine.LeakyBucket:
		c.bucket = c.bucket.at(l, now, c.seen())
	case engine.Concurrency:
		c.slots = c.slots.asOf(now)
	}
	return &c
}

// keep makes c the counter of l.
func (m *Model) keep(l *engine.Limit, c *counter, now engine.Micros) {
	switch l.Algorithm {
	case engine.FixedWindow:
		c.until = c.fixed.end
	case engine.SlidingWindow, engine.SlidingLog:
		c.hits = c.hits.trim(l)
		c.until = c.hits.until(l)
	case engine.TokenBucket, engine.LeakyBucket:
		if l.Hits == 0 { // a bucket that never fills keeps its state
			return
		}
		switch {
		case !c.seen():
			c.bucket.keep(l, now)
		case c.bucket.moved:
			c.bucket.spent, c.bucket.unit = c.bucket.was, c.bucket.of
		}
		c.until = c.bucket.until
	case engine.Concurrency:
		c.until = c.slots.whole()
	}
	if m.counters == nil {
		m.counters = map[engine.Slot]counter{}
	}
	m.counters[l.Slot()] = *c
}

// clone returns a copy of m. Changes to the copy do not affect m, because counters are never modified in place.
func (m *Model) clone() *Model {
	return &Model{counters: maps.Clone(m.counters), gate: m.gate, windows: m.windows}
}

func (c *counter) seen() bool { return c.until > 0 }

// begins reports whether the key is new and the time of its first use matters.
func (c *counter) begins(l *engine.Limit) bool {
	return l.Algorithm == engine.TokenBucket && l.Hits > 0 && l.Initial < l.Burst && !c.seen()
}

// worthKeeping reports whether a rejected take changes the counter.
func (c *counter) worthKeeping(l *engine.Limit) bool {
	switch l.Algorithm {
	case engine.FixedWindow:
		return c.fixed.moved
	case engine.TokenBucket, engine.LeakyBucket:
		return c.begins(l) || c.bucket.moved
	case engine.SlidingWindow, engine.SlidingLog, engine.Concurrency:
	}
	return true
}

// takesBack reports whether refunding hits changes the counter.
func (c *counter) takesBack(l *engine.Limit, hits uint64) bool {
	switch l.Algorithm {
	case engine.LeakyBucket: // promised turns remain
		return false
	case engine.TokenBucket:
		return l.Hits > 0 && hits > 0 && c.bucket.spent.Sign() > 0
	case engine.FixedWindow, engine.SlidingWindow, engine.SlidingLog, engine.Concurrency:
	}
	return c.seen()
}

// left returns the number of hits left.
func (c *counter) left(l *engine.Limit, owner string) uint64 {
	switch l.Algorithm {
	case engine.FixedWindow:
		return minus(capacity(l), c.fixed.count)
	case engine.SlidingWindow, engine.SlidingLog:
		return c.hits.left(l)
	case engine.TokenBucket, engine.LeakyBucket:
		return c.bucket.left(l)
	case engine.Concurrency:
	}
	return minus(l.Hits, c.slots.others(owner))
}

// fits reports whether cost would be admitted.
func (c *counter) fits(l *engine.Limit, cost uint64, owner string) bool {
	switch l.Algorithm {
	case engine.FixedWindow:
		return c.fixed.count+cost <= capacity(l)
	case engine.SlidingWindow, engine.SlidingLog:
		return c.hits.total()+cost <= l.Hits
	case engine.TokenBucket, engine.LeakyBucket:
		return l.Hits > 0 && c.bucket.fits(l, cost)
	case engine.Concurrency:
	}
	if l.Hits > 0 && cost <= c.slots.own(owner) {
		return true // needs no additional slots
	}
	return c.slots.others(owner)+cost <= l.Hits
}

// capacity returns the largest cost that can ever be admitted.
func capacity(l *engine.Limit) uint64 {
	if l.Algorithm != engine.TokenBucket && l.Algorithm != engine.LeakyBucket || l.Hits == 0 {
		return l.Hits
	}
	return l.Burst + l.Debt
}

// spend consumes t.Cost, which must fit, and returns the number of its slots that the owner already held.
func (c *counter) spend(l *engine.Limit, now engine.Micros, t engine.Take) (renewed uint64) {
	switch l.Algorithm {
	case engine.FixedWindow:
		c.fixed.add(t.Cost)
	case engine.SlidingWindow, engine.SlidingLog:
		c.hits = c.hits.add(now, t.Cost)
	case engine.TokenBucket, engine.LeakyBucket:
		last, mixed := c.bucket.full, c.bucket.mixed(l, now)
		c.bucket.take(t.Cost)
		if c.bucket.keep(l, now); mixed { // after the last promised turn
			alone := bucket{spent: rat(t.Cost)}
			c.bucket.fillsAt(l, last+ceil(alone.wait(l)))
			c.bucket.many = true
		}
	case engine.Concurrency:
		c.slots, renewed = c.slots.take(t.Cost, t.Owner, now, now+l.Window)
	}
	return renewed
}

// overspend consumes a rejected cost if l counts rejected hits, and reports whether that changes anything.
func (c *counter) overspend(l *engine.Limit, now engine.Micros, cost uint64) bool {
	switch l.Algorithm {
	case engine.FixedWindow:
		c.fixed.add(cost)
	case engine.SlidingWindow, engine.SlidingLog:
		if room := minus(2*l.Hits, c.hits.total()); room > 0 {
			c.hits = c.hits.add(now, min(cost, room))
		}
	case engine.TokenBucket:
		if l.Hits == 0 || !c.bucket.overspend(l, cost) {
			return c.worthKeeping(l)
		}
		c.bucket.keep(l, now)
	case engine.LeakyBucket, engine.Concurrency:
	}
	return true
}

// give refunds hits. If t.Window is not 0, it is the start of the window in which the hits were consumed.
func (c *counter) give(l *engine.Limit, now engine.Micros, t engine.Take, hits uint64) {
	switch l.Algorithm {
	case engine.FixedWindow:
		if window := engine.Micros(t.Window); window == 0 || window >= c.fixed.start {
			c.fixed.give(hits)
		}
	case engine.SlidingWindow, engine.SlidingLog:
		c.hits = c.hits.give(hits)
	case engine.TokenBucket:
		full := c.bucket.full
		c.bucket.give(hits)
		if c.bucket.keep(l, now); c.seen() {
			c.bucket.fillsAt(l, min(c.bucket.full, full))
		}
	case engine.LeakyBucket:
	case engine.Concurrency:
		c.slots = c.slots.give(hits, t.Owner)
	}
}

// window returns the start of the current window, or 0.
func (c *counter) window(l *engine.Limit) int64 {
	if l.Algorithm != engine.FixedWindow || !c.fixed.begun {
		return 0
	}
	return int64(c.fixed.start)
}

// wait returns the time until the turn of a hit admitted now.
func (c *counter) wait(l *engine.Limit, now engine.Micros) time.Duration {
	if l.Algorithm != engine.LeakyBucket || l.Hits == 0 {
		return 0
	}
	return span(c.bucket.whole(l, now) - now)
}

// lefts returns the hits left of each limit.
func (m *Model) lefts(l engine.Limits, now engine.Micros, owner string) []uint64 {
	lefts := make([]uint64, len(l))
	for i := range l {
		lefts[i] = m.at(&l[i], now).left(&l[i], owner)
	}
	return lefts
}

// resetAfter returns the time until the counter of l is fully restored.
func (m *Model) resetAfter(l *engine.Limit, now engine.Micros) time.Duration {
	c, whole := m.at(l, now), engine.Micros(0)
	switch l.Algorithm {
	case engine.FixedWindow:
		if c.fixed.begun {
			whole = c.fixed.end
		}
	case engine.SlidingWindow, engine.SlidingLog:
		whole = c.hits.whole(l)
	case engine.TokenBucket, engine.LeakyBucket:
		whole = c.bucket.whole(l, now)
	case engine.Concurrency:
		whole = c.slots.whole()
	}
	return span(whole - now)
}

// retryAfter searches for the first time at which the cost would be admitted if there were no other requests.
func (m *Model) retryAfter(l *engine.Limit, now engine.Micros, t engine.Take) time.Duration {
	cost := max(t.Cost, 1)
	whole := m.resetAfter(l, now)
	c := m.at(l, now)
	if cost > capacity(l) {
		return engine.Never
	}
	if l.Algorithm == engine.FixedWindow || c.bucket.mixed(l, now) {
		return whole
	}
	alone := Model{}
	alone.keep(l, c, now) // as if it had been stored now
	fits := func(after engine.Micros) bool { return alone.at(l, now+after).fits(l, cost, t.Owner) }
	return span(search(engine.Micros(whole/time.Microsecond), fits))
}

// search returns the smallest number from 0 to most for which is returns true, or most if there is none. is must be monotonic: true for
// every number above one for which it is true.
func search(most engine.Micros, is func(engine.Micros) bool) engine.Micros {
	low, high := engine.Micros(0), most
	for low < high {
		if middle := low + (high-low)/2; is(middle) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low
}

func span(m engine.Micros) time.Duration { return time.Duration(max(m, 0)) * time.Microsecond }

func inRange(now engine.Micros) engine.Micros { return min(max(now, 0), 1<<52) }

func minus(a, b uint64) uint64 { return a - min(a, b) }

// times returns a·b, at most MaxHits.
func times(a, b uint64) uint64 {
	x := new(big.Int).Mul(new(big.Int).SetUint64(a), new(big.Int).SetUint64(b))
	if x.Cmp(big.NewInt(engine.MaxHits)) > 0 {
		return engine.MaxHits
	}
	return x.Uint64()
}

func rat(n uint64) *big.Rat { return new(big.Rat).SetUint64(n) }

// floor returns x rounded down.
func floor(x *big.Rat) int64 {
	return new(big.Int).Div(x.Num(), x.Denom()).Int64() // Euclidean division, which rounds down because denominators are positive
}

// ceil returns x rounded up, at most 2^53, which is later than any time that matters.
func ceil(x *big.Rat) engine.Micros {
	if latest := big.NewRat(1<<53, 1); x.Cmp(latest) > 0 {
		x = latest
	}
	return engine.Micros(-floor(new(big.Rat).Neg(x)))
}
