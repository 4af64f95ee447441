package enginetest

import (
	"math/big"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// bucket is the state of a token bucket or of a leaky bucket's queue.
type bucket struct {
	spent *big.Rat      // hits consumed, or queued, at the time last
	last  engine.Micros // time up to which returned hits are counted
	unit  *big.Int      // spent is a multiple of 1/unit hits
	full  engine.Micros // time at which the bucket is full, or the last turn of the queue over, for the limit that wrote the state
	until engine.Micros // time from which the key counts as new
	many  bool          // the queue's turns were promised at different rates
	moved bool          // the state is from the future and was moved to now
	was   *big.Rat      // if moved: spent before the move
	of    *big.Int      // if moved: unit before the move
}

// at returns b without the hits that have come back, or left, since b.last.
func (b bucket) at(l *engine.Limit, now engine.Micros, seen bool) bucket {
	if l.Hits == 0 {
		return b
	}
	after := bucket{last: now, unit: rateOf(l).Denom(), full: b.full, until: b.until, many: b.many}
	if l.FillInterval > 0 {
		after.last -= now % l.FillInterval
	}
	if !seen {
		after.spent, after.full, after.until, after.many = new(big.Rat), 0, 0, false
		if l.Algorithm == engine.TokenBucket {
			after.spent = rat(l.Burst - l.Initial)
		}
		return after
	}
	after.spent = b.spent
	if b.unit.Cmp(after.unit) != 0 {
		after.spent = roundUp(b.spent, after.unit)
	}
	switch after.moved = b.last > now; {
	case after.moved:
		after.full -= b.last - now
		after.until -= b.last - now
		after.was, after.of, after.last = b.spent, b.unit, now
	case now >= b.full:
		after.spent = new(big.Rat)
	case l.Algorithm == engine.LeakyBucket && after.mixed(l, b.last):
		after.spent = minusRat(after.spent, after.turned(b.last, now))
	default:
		after.last = max(after.last, b.last)
		after.spent = minusRat(after.spent, came(l, b.last, now))
	}
	return after
}

// mixed reports whether the turns of a queue were promised at other rates than l's.
func (b *bucket) mixed(l *engine.Limit, now engine.Micros) bool {
	return l.Algorithm == engine.LeakyBucket && l.Hits > 0 && b.full > 0 && (b.many || ceil(b.wait(l)) != b.full-now)
}

// turned returns the hits that leave a queue between two times, rounded down to units. The queue's whole hits leave evenly until its end.
// A queue longer than 2^48 µs does not move.
func (b *bucket) turned(from, to engine.Micros) *big.Rat {
	if b.full-from > 1<<48 {
		return new(big.Rat)
	}
	hits := new(big.Rat).SetInt64(floor(b.spent))
	hits.Mul(hits, big.NewRat(int64(to-from), int64(b.full-from)))
	parts := hits.Mul(hits, new(big.Rat).SetInt(b.unit))
	return new(big.Rat).SetFrac(new(big.Int).Div(parts.Num(), parts.Denom()), b.unit)
}

// came returns the number of hits that come back between two times.
func came(l *engine.Limit, from, to engine.Micros) *big.Rat {
	if l.FillInterval > 0 { // at the last step between them
		to = max(from, to-to%l.FillInterval)
	}
	hits := new(big.Rat).SetInt64(int64(to - from))
	return hits.Mul(hits, rateOf(l))
}

// roundUp returns x in parts of 1/unit, rounded up.
func roundUp(x *big.Rat, unit *big.Int) *big.Rat {
	parts := new(big.Rat).Mul(x, new(big.Rat).SetInt(unit))
	whole := new(big.Int).Neg(parts.Num())
	whole.Div(whole, parts.Denom())
	return new(big.Rat).SetFrac(whole.Neg(whole), unit)
}

// minusRat returns x − y, at least 0.
func minusRat(x, y *big.Rat) *big.Rat {
	if x.Cmp(y) <= 0 {
		return new(big.Rat)
	}
	return new(big.Rat).Sub(x, y)
}

// rateOf returns the tokens per microsecond.
func rateOf(l *engine.Limit) *big.Rat {
	window := new(big.Rat).SetInt64(int64(l.Window))
	return window.Quo(rat(l.Hits), window)
}

// level returns the tokens in the bucket, or the free places of the queue.
func (b *bucket) level(l *engine.Limit) *big.Rat { return new(big.Rat).Sub(rat(l.Burst), b.spent) }

// wait returns the microseconds until the bucket is full, or the queue empty, if tokens arrive continuously.
func (b *bucket) wait(l *engine.Limit) *big.Rat { return new(big.Rat).Quo(b.spent, rateOf(l)) }

func (b *bucket) left(l *engine.Limit) uint64 {
	if l.Hits == 0 {
		return 0
	}
	level := b.level(l)
	switch {
	case level.Sign() <= 0:
		return 0
	case l.Algorithm == engine.LeakyBucket: // a place that is partly free accepts a hit
		return uint64(ceil(level))
	}
	return uint64(floor(level))
}

func (b *bucket) fits(l *engine.Limit, cost uint64) bool {
	level := b.level(l)
	after := new(big.Rat).Sub(level, rat(cost))
	switch {
	case l.Algorithm == engine.LeakyBucket: // the wait is less than (Burst − cost + 1)·W/L
		return after.Cmp(big.NewRat(-1, 1)) > 0 && cost <= l.Burst
	case l.Debt > 0:
		return level.Sign() > 0 && after.Cmp(new(big.Rat).Neg(rat(l.Debt))) >= 0
	}
	return after.Sign() >= 0
}

func (b *bucket) take(cost uint64) { b.spent = new(big.Rat).Add(b.spent, rat(cost)) }

// overspend consumes a rejected cost, up to a total of two bursts, and reports whether it consumed anything.
func (b *bucket) overspend(l *engine.Limit, cost uint64) bool {
	most := rat(2 * l.Burst)
	if b.spent.Cmp(most) >= 0 {
		return false
	}
	if b.take(cost); b.spent.Cmp(most) > 0 {
		b.spent = most
	}
	return true
}

func (b *bucket) give(hits uint64) { b.spent = minusRat(b.spent, rat(hits)) }

// whole returns the time at which the bucket is full or the queue empty, or now if it already is. If a larger limit consumed more hits
// than l could, whole is at most the time at which the bucket is full for that limit.
func (b *bucket) whole(l *engine.Limit, now engine.Micros) engine.Micros {
	if l.Hits == 0 {
		return now
	}
	if b.mixed(l, now) {
		return b.full
	}
	whole := b.restored(l, now)
	if b.full > 0 {
		whole = min(whole, b.full)
	}
	return whole
}

// restored returns the time at which all consumed hits have come back.
func (b *bucket) restored(l *engine.Limit, now engine.Micros) engine.Micros {
	most := ceil(b.wait(l)) + l.FillInterval
	return now + search(most, func(after engine.Micros) bool {
		return minusRat(b.spent, came(l, b.last, now+after)).Sign() == 0
	})
}

// keep updates full and until after hits were consumed or refunded.
func (b *bucket) keep(l *engine.Limit, now engine.Micros) {
	b.moved = false
	b.fillsAt(l, b.restored(l, now))
}

// fillsAt sets full and until. A bucket that does not start full is kept for longer than it takes to fill, because a new bucket would be
// back at its initial level.
func (b *bucket) fillsAt(l *engine.Limit, full engine.Micros) {
	b.full, b.until = full, full
	if l.Algorithm == engine.TokenBucket && l.Initial < l.Burst {
		b.until += l.Window
	}
}
