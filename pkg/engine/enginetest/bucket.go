package enginetest

import (
	"math/big"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// bucket is a bucket of tokens: those of a token bucket, or the free places of a leaky bucket's queue.
type bucket struct {
	level *big.Rat      // number of tokens at the time last
	last  engine.Micros // when the tokens were counted
	limit engine.Limit  // the limit by which they were counted
	moved bool
}

// at returns b with the tokens added that have come since.
func (b bucket) at(l *engine.Limit, now engine.Micros, seen bool) bucket {
	if l.Hits == 0 {
		return b
	}
	if l.FillInterval > 0 {
		now -= now % l.FillInterval
	}
	if !seen {
		start := l.Burst
		if l.Algorithm == engine.TokenBucket {
			start = l.Initial
		}
		return bucket{level: rat(start), last: now, limit: *l}
	}
	after := bucket{last: now, limit: *l}
	if b.limit.Hits == l.Hits && b.limit.Window == l.Window && b.limit.Burst == l.Burst {
		came := new(big.Rat).SetInt64(int64(now - b.last))
		after.level = came.Add(b.level, came.Mul(came, rateOf(l)))
	} else {
		full := b.full()
		if rateOf(l).Num().Cmp(rateOf(&b.limit).Num()) != 0 {
			full.SetInt64(int64(ceil(full)))
		}
		missing := full.Sub(full, new(big.Rat).SetInt64(int64(now)))
		after.level = missing.Sub(rat(l.Burst), missing.Mul(missing, rateOf(l)))
	}
	if full := rat(l.Burst); after.level.Cmp(full) > 0 {
		after.level = full
	}
	if lowest := lowest(l); after.level.Cmp(lowest) < 0 {
		after.level, after.moved = lowest, true
	}
	return after
}

// rateOf returns the number of tokens that come per microsecond.
func rateOf(l *engine.Limit) *big.Rat {
	window := new(big.Rat).SetInt64(int64(l.Window))
	return window.Quo(rat(l.Hits), window)
}

// lowest returns the lowest possible level: a lower one was counted at a time in the future.
func lowest(l *engine.Limit) *big.Rat {
	if l.Algorithm == engine.LeakyBucket { // −1 itself is never reached, but every multiple of the least difference above it can be
		least := new(big.Rat).SetFrac(big.NewInt(1), rateOf(l).Denom())
		return least.Sub(least, big.NewRat(1, 1))
	}
	x := rat(l.Debt)
	if l.CountRefused {
		x = rat(l.Burst)
	}
	return x.Neg(x)
}

// full returns when the bucket would be full under the limit by which it was counted, if tokens came continuously. A
// change of the limit preserves this time.
func (b *bucket) full() *big.Rat {
	missing := new(big.Rat).Sub(rat(b.limit.Burst), b.level)
	missing.Quo(missing, rateOf(&b.limit))
	return missing.Add(missing, new(big.Rat).SetInt64(int64(b.last)))
}

// queue returns the number of microseconds until the queue of a leaky bucket is empty.
func (b *bucket) queue(l *engine.Limit) *big.Rat {
	ahead := new(big.Rat).Sub(rat(l.Burst), b.level)
	return ahead.Quo(ahead, rateOf(l))
}

func (b *bucket) left(l *engine.Limit) uint64 {
	switch {
	case l.Hits == 0 || b.level.Sign() <= 0:
		return 0
	case l.Algorithm == engine.LeakyBucket: // a place that is partly free accepts a hit
		return uint64(ceil(b.level))
	}
	return uint64(floor(b.level))
}

func (b *bucket) fits(l *engine.Limit, cost uint64) bool {
	after := new(big.Rat).Sub(b.level, rat(cost))
	switch {
	case l.Algorithm == engine.LeakyBucket: // the wait is less than (Burst − cost + 1)·W/L
		return after.Cmp(big.NewRat(-1, 1)) > 0 && cost <= l.Burst
	case l.Debt > 0:
		return b.level.Sign() > 0 && after.Cmp(lowest(l)) >= 0
	}
	return after.Sign() >= 0
}

func (b *bucket) take(cost uint64) { b.level = new(big.Rat).Sub(b.level, rat(cost)) }

func (b *bucket) give(l *engine.Limit, hits uint64) {
	b.level = new(big.Rat).Add(b.level, rat(hits))
	if full := rat(l.Burst); b.level.Cmp(full) > 0 {
		b.level = full
	}
}

// whole returns when the bucket is full, or now if it already is.
func (b *bucket) whole(l *engine.Limit, now engine.Micros) engine.Micros {
	if l.Hits == 0 {
		return now
	}
	most := ceil(b.queue(l)) + l.FillInterval
	return now + search(most, func(after engine.Micros) bool {
		later := b.at(l, now+after, true)
		return later.level.Cmp(rat(l.Burst)) == 0
	})
}

// until returns the time from which on the bucket's state is irrelevant. A bucket that does not start full is
// remembered for longer than it takes to fill, because once forgotten it would be back at its initial level.
func (b *bucket) until(l *engine.Limit, now engine.Micros) engine.Micros {
	whole := b.whole(l, now)
	if l.Algorithm == engine.TokenBucket && l.Initial < l.Burst {
		whole += l.Window
	}
	return whole
}
