package engine_test

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
	"github.com/ratelimitd/ratelimitd/pkg/engine/enginetest"
)

// turns holds the hits that alternating limits of one counter admitted, with peeks in between.
type turns struct {
	limits engine.Limits
	all    []spent
	by     []int // index of the limit that admitted each of all
}

// takeTurns draws limits that share a state, as rules and overrides do, or replicas during the rollout of new rules. The limits take and
// peek at random.
func takeTurns(t *rapid.T, a engine.Algorithm) turns {
	l := enginetest.LimitOf(a).Draw(t, "limit")
	change := enginetest.Changed
	small := rapid.IntRange(0, 3).Draw(t, "small") > 0 // small numbers, so that some takes are admitted and some rejected
	if small {
		l.Window, l.Calendar, change = 1e6, nil, smaller
		l = smaller(l).Draw(t, "smaller")
	}
	x := turns{limits: engine.Limits{l.Prepared()}}
	for range rapid.IntRange(1, 3).Draw(t, "others") {
		x.limits = append(x.limits, change(l).Draw(t, "changed").Prepared())
	}
	states := newCounter(nil, nil)
	now := enginetest.Start + engine.Micros(rapid.Int64Range(0, int64(l.Window)).Draw(t, "start"))
	last := now
	for range rapid.IntRange(1, 80).Draw(t, "calls") {
		i := rapid.IntRange(0, len(x.limits)-1).Draw(t, "who")
		states.limits = x.limits[i : i+1]
		if now += max(0, enginetest.Later(states.limits).Draw(t, "later")); now > end {
			break
		}
		k := enginetest.Take(states.limits).Draw(t, "take")
		if small {
			now -= max(0, now-last-engine.Micros(rapid.SampledFrom([]int{0, 0, 1, 20_000, 100_000, 400_000}).Draw(t, "at most")))
			k.Cost = min(k.Cost, rapid.Uint64Range(1, 30).Draw(t, "at most"))
		}
		last = now
		k.Owner, k.Extra, k.Count = "", 0, 1
		switch rapid.IntRange(0, 3).Draw(t, "call") {
		case 0:
			before := *states.state(x.limits[i].Slot())
			states.look(now, k)
			if after := *states.state(x.limits[i].Slot()); after != before {
				t.Fatalf("a look changed %+v to %+v", before, after)
			}
		case 1:
			k.Cost = 0
			fallthrough
		default:
			x.all, x.by = append(x.all, spent{now, min(k.Cost, engine.MaxHits), 1, states.take(now, k)}), append(x.by, i)
		}
	}
	return x
}

// smaller draws a limit that shares the state of l, with numbers that a few takes fill.
func smaller(l engine.Limit) *rapid.Generator[engine.Limit] {
	return rapid.Custom(func(t *rapid.T) engine.Limit {
		c := l
		c.Hits = rapid.Uint64Range(1, 30).Draw(t, "hits")
		c.Precision = min(l.Precision, 10)
		if c.Slot() == (engine.Limit{Algorithm: c.Algorithm}).Slot() { // the slot does not contain the window
			c.Window = rapid.SampledFrom([]engine.Micros{1e6, 1e6, 2e6, 60e6}).Draw(t, "window")
		}
		if c.Burst > 0 {
			c.Burst = rapid.Uint64Range(1, 60).Draw(t, "burst")
			c.Debt, c.FillInterval, c.Initial = min(c.Debt, 20), 0, min(c.Initial, c.Burst)
		}
		if c.FillInterval = 0; c.Algorithm == engine.TokenBucket && rapid.IntRange(0, 2).Draw(t, "steps") == 0 {
			c.FillInterval = c.Window
		}
		return c
	}).Filter(func(c engine.Limit) bool { return c.Validate() == nil })
}

// largest returns the maximum of a number over all limits.
func (x *turns) largest(of func(*engine.Limit) uint64) (n uint64) {
	for i := range x.limits {
		n = max(n, of(&x.limits[i]))
	}
	return n
}

// bound returns burst + r·(t + s), where r is the largest rate of all limits.
func (x *turns) bound(burst uint64, s engine.Micros) func(engine.Micros) *big.Rat {
	return func(span engine.Micros) *big.Rat {
		most := new(big.Rat)
		for i := range x.limits {
			if b := atRate(&x.limits[i], burst, s)(span); b.Cmp(most) > 0 {
				most = b
			}
		}
		return most
	}
}

// TestLimitsTakeTurns checks that alternating limits that share a state admit no more than the largest burst and the largest rate allow.
func TestLimitsTakeTurns(t *testing.T) {
	hits := func(l *engine.Limit) uint64 { return l.Hits }
	for a, check := range map[engine.Algorithm]func(*rapid.T, *turns){
		engine.FixedWindow: func(t *rapid.T, x *turns) {
			admitted := map[int64]uint64{}
			for _, s := range x.all {
				if admitted[s.Window] += s.hits(); admitted[s.Window] > x.largest(hits) {
					t.Fatalf("%d hits in a window", admitted[s.Window])
				}
			}
		},
		engine.SlidingWindow: func(t *rapid.T, x *turns) { most(t, x.all, within(x.largest(hits), x.limits[0].Window)) },
		engine.SlidingLog: func(t *rapid.T, x *turns) {
			most(t, x.all, x.bound(x.largest(hits), 0))
			for i, l := range x.limits { // the hits that each limit admits fit its own window
				most(t, x.of(i), within(l.Hits, l.Window))
			}
		},
		engine.TokenBucket: func(t *rapid.T, x *turns) {
			most(t, x.all, x.bound(x.largest(func(l *engine.Limit) uint64 { return l.Burst + l.Debt }),
				engine.Micros(x.largest(func(l *engine.Limit) uint64 { return uint64(l.FillInterval) }))))
		},
		engine.LeakyBucket: func(t *rapid.T, x *turns) {
			most(t, x.all, x.bound(x.largest(func(l *engine.Limit) uint64 { return l.Burst })+1, 0)) // plus 1, because one hit is leaving
			x.checkOrder(t)
		},
		engine.Concurrency: func(t *rapid.T, x *turns) { x.checkHeld(t, x.largest(hits)) },
	} {
		t.Run(a.String(), rapid.MakeCheck(func(t *rapid.T) {
			x := takeTurns(t, a)
			check(t, &x)
		}))
	}
}

// of returns the hits that the i-th limit admitted.
func (x *turns) of(i int) (all []spent) {
	for k, s := range x.all {
		if x.by[k] == i {
			all = append(all, s)
		}
	}
	return all
}

// checkOrder checks that turns in a queue follow the order of the takes, at the rate of the limit that promised each turn.
func (x *turns) checkOrder(t *rapid.T) {
	free := new(big.Rat) // earliest time of the next turn
	for k, s := range x.all {
		if s.hits() == 0 {
			continue
		}
		turn := new(big.Rat).SetInt64(int64(s.at) + int64(s.Wait/time.Microsecond))
		if turn.Cmp(free) < 0 {
			t.Fatalf("the turn at %s comes before %s", turn.FloatString(0), free.FloatString(3))
		}
		l := &x.limits[x.by[k]]
		lasts := big.NewRat(int64(l.Window), int64(l.Hits))
		turn.Add(turn, lasts.Mul(lasts, new(big.Rat).SetUint64(s.hits())))
		free = turn.Sub(turn, big.NewRat(1, 1)) // turns are in whole µs, rounded up
	}
}

// checkHeld checks that no more than limit slots are held at any time, if none is released before its end.
func (x *turns) checkHeld(t *rapid.T, limit uint64) {
	for i, s := range x.all {
		held := s.hits()
		for k, before := range x.all[:i] {
			if s.at < before.at+x.limits[x.by[k]].Window {
				held += before.hits()
			}
		}
		if s.hits() > 0 && held > limit {
			t.Fatalf("%d slots are held at %d, at most %d may be", held, s.at, limit)
		}
	}
}

// TestStepsTakeTurns checks that tokens come back once if one limit refills in steps and another continuously.
func TestStepsTakeTurns(t *testing.T) {
	const second = engine.Micros(1e6)
	plain := engine.Limit{Algorithm: engine.TokenBucket, Hits: 10, Window: second, Burst: 10, Initial: 10}
	stepped, other := plain, plain
	stepped.FillInterval, other.FillInterval = second, second*9/10
	for _, l := range []engine.Limits{{stepped, plain}, {stepped, other}, {plain, other}} {
		c := newCounter(nil, nil)
		admitted := uint64(0)
		for i := range 100 {
			at := enginetest.Start + engine.Micros(i)*second
			for k, now := range []engine.Micros{at, at + second - 1} {
				c.limits = l[k : k+1]
				admitted += c.take(now, engine.Take{Cost: 1, Count: 100}).Admitted
			}
		}
		if most := uint64(10 + 10*(100+1)); admitted > most {
			t.Errorf("%s and the next admit %d in 100 s, want at most %d", text(l), admitted, most)
		}
	}
}
