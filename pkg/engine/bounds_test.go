package engine_test

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
	"github.com/ratelimitd/ratelimitd/pkg/engine/enginetest"
)

// spent is one take of an adversary: its time, its arguments and the decision.
type spent struct {
	at          engine.Micros
	cost, count uint64
	engine.Decision
}

func (s spent) hits() uint64 { return s.Admitted * s.cost }

// end is the time at which tests end, in the year 2041; the engine clamps times after 2112.
const end engine.Micros = 1 << 51

// adversary takes from a new counter of l at random as time passes, and returns every take.
func adversary(t *rapid.T, l engine.Limit) []spent {
	c := newCounter(engine.Limits{l.Prepared()}, nil)
	now := enginetest.Start + engine.Micros(rapid.Int64Range(0, int64(l.Window)).Draw(t, "start"))
	var all []spent
	for range rapid.IntRange(1, 40).Draw(t, "takes") {
		if now += max(0, enginetest.Later(c.limits).Draw(t, "later")); now > end {
			break
		}
		k := enginetest.Take(c.limits).Draw(t, "take")
		k.Owner, k.Cost = "", max(1, k.Cost)
		if k.Extra = 0; len(all)%2 == 0 {
			k.Count = 1
		}
		all = append(all, spent{now, min(k.Cost, engine.MaxHits), k.Count, c.take(now, k)})
	}
	return all
}

// most fails the test if the hits of any consecutive takes exceed bound for the time between the first and the last.
func most(t *rapid.T, all []spent, bound func(span engine.Micros) *big.Rat) {
	for i := range all {
		sum := new(big.Rat)
		for j := i; j < len(all); j++ {
			sum.Add(sum, new(big.Rat).SetUint64(all[j].hits()))
			if limit := bound(all[j].at - all[i].at); sum.Cmp(limit) > 0 {
				t.Fatalf("%s hits in %d µs, at most %s may be", sum.FloatString(3), all[j].at-all[i].at, limit.FloatString(3))
			}
		}
	}
}

// within returns a bound that applies to spans shorter than window.
func within(hits uint64, window engine.Micros) func(engine.Micros) *big.Rat {
	return func(span engine.Micros) *big.Rat {
		if span >= window {
			return new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), 80))
		}
		return new(big.Rat).SetUint64(hits)
	}
}

// atRate returns the bound burst + rate·(t + s).
func atRate(l *engine.Limit, burst uint64, s engine.Micros) func(engine.Micros) *big.Rat {
	return func(span engine.Micros) *big.Rat {
		x := big.NewRat(int64(span+s), int64(l.Window))
		x.Mul(x, new(big.Rat).SetUint64(l.Hits))
		return x.Add(x, new(big.Rat).SetUint64(burst))
	}
}

// recent returns the hits admitted in the last span before the i-th take.
func recent(all []spent, i int, span engine.Micros) (sum uint64) {
	for _, s := range all[:i] {
		if all[i].at-s.at < span {
			sum += s.hits()
		}
	}
	return sum
}

func TestFixedWindowBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := enginetest.LimitOf(engine.FixedWindow).Draw(t, "limit")
		all := adversary(t, l)
		shortest := l.Window
		if l.Calendar != nil { // whose windows may be shorter than the nominal length
			shortest = l.Window * 9 / 10
		}
		most(t, all, within(2*l.Hits, shortest))
		admitted, asked := map[int64]uint64{}, map[int64]uint64{}
		for _, s := range all {
			admitted[s.Window] += s.hits()
			if asked[s.Window] = min(asked[s.Window]+s.cost*s.count, 1<<60); s.Admitted < s.count && asked[s.Window] <= l.Hits {
				t.Fatalf("rejected at %d though no more than %d were asked for in its window", s.at, asked[s.Window])
			}
			if admitted[s.Window] > l.Hits {
				t.Fatalf("%d hits in a window", admitted[s.Window])
			}
			switch {
			case l.Calendar != nil:
				if start, _ := enginetest.CalendarWindow(l.Calendar, s.at); s.Window != int64(start) {
					t.Fatalf("at %d the window starts at %d, want %d", s.at, s.Window, start)
				}
			case l.Align == engine.AlignClock && (s.Window%int64(l.Window) != 0 || int64(s.at)-s.Window >= int64(l.Window)):
				t.Fatalf("at %d the window starts at %d", s.at, s.Window)
			}
		}
	})
}

func TestSlidingWindowBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := enginetest.LimitOf(engine.SlidingWindow).Draw(t, "limit")
		all := adversary(t, l)
		most(t, all, within(l.Hits, l.Window))
		late := l.Window + l.Window/engine.Micros(l.Precision) + 1
		for i, s := range all {
			if s.Admitted == 0 && !l.CountRefused && recent(all, i, late)+s.cost <= l.Hits {
				t.Fatalf("%d rejected at %d though it fits", s.cost, s.at)
			}
		}
	})
}

func TestSlidingLogBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := enginetest.LimitOf(engine.SlidingLog).Draw(t, "limit")
		all := adversary(t, l)
		most(t, all, within(l.Hits, l.Window))
		for i, s := range all {
			if s.Admitted == 0 && !l.CountRefused && s.cost <= l.Hits && recent(all, i, l.Window)+s.cost <= l.Hits {
				t.Fatalf("%d rejected at %d though it fits", s.cost, s.at)
			}
		}
	})
}

func TestTokenBucketBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := enginetest.LimitOf(engine.TokenBucket).Draw(t, "limit")
		all := adversary(t, l)
		most(t, all, atRate(&l, l.Burst+l.Debt, l.FillInterval))
	})
}

// TestTokenBucketConforming checks that a bucket never rejects a caller that sends at most burst + rate·t.
func TestTokenBucketConforming(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := enginetest.LimitOf(engine.TokenBucket).Draw(t, "limit")
		l.Debt, l.FillInterval, l.Initial, l.CountRefused = 0, 0, l.Burst, false
		all := adversary(t, l)
		bound := atRate(&l, l.Burst, 0)
		for i, s := range all {
			if s.Admitted > 0 || s.cost > l.Burst {
				continue
			}
			sum, conforms := new(big.Rat).SetUint64(s.cost), l.Hits > 0
			for j := i; j >= 0; j-- {
				sum.Add(sum, new(big.Rat).SetUint64(all[j].hits()))
				conforms = conforms && sum.Cmp(bound(s.at-all[j].at)) <= 0
			}
			if conforms {
				t.Fatalf("%d rejected at %d though it conforms", s.cost, s.at)
			}
		}
	})
}

// TestLeakyBucketBound checks that turns are in order and do not overlap.
func TestLeakyBucketBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := enginetest.LimitOf(engine.LeakyBucket).Draw(t, "limit")
		free := new(big.Rat) // earliest time of the next turn
		for _, s := range adversary(t, l) {
			if s.Admitted == 0 {
				continue
			}
			turn := new(big.Rat).SetInt64(int64(s.at) + int64(s.Wait/time.Microsecond))
			if late := new(big.Rat).Sub(turn, free); late.Sign() < 0 || s.Wait > 0 && late.Cmp(big.NewRat(1, 1)) >= 0 {
				t.Fatalf("the turn at %s comes %s µs after it may", turn.FloatString(0), late.FloatString(3))
			}
			if at := new(big.Rat).SetInt64(int64(s.at)); free.Cmp(at) < 0 {
				free = at
			}
			lasts := big.NewRat(int64(l.Window), int64(l.Hits))
			free.Add(free, lasts.Mul(lasts, new(big.Rat).SetUint64(s.hits())))
		}
	})
}

func TestConcurrencyBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := enginetest.LimitOf(engine.Concurrency).Draw(t, "limit")
		all := adversary(t, l)
		most(t, all, within(l.Hits, l.Window)) // because nothing is released
		for i, s := range all {
			if s.Admitted == 0 && s.cost <= l.Hits && recent(all, i, l.Window)+s.cost <= l.Hits {
				t.Fatalf("%d rejected at %d though it fits", s.cost, s.at)
			}
		}
	})
}

// TestRetryAfter checks that RetryAfter is the first time at which the cost is admitted, and ResetAfter the first at which the counter is
// as if unused, in any state.
func TestRetryAfter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := enginetest.Limit().Draw(t, "limit")
		c := newCounter(engine.Limits{l}, nil)
		now := enginetest.Start
		for range rapid.IntRange(1, 20).Draw(t, "takes") {
			if now += enginetest.Later(c.limits).Draw(t, "later"); now > end {
				return
			}
			k := enginetest.Take(c.limits).Draw(t, "take")
			k.Count, k.Extra = 1, 0
			k.Cost = max(1, k.Cost) // a check does not move times from the future
			d := c.take(now, k)
			longest := longestWait(&l)
			if d.Admitted == 1 || l.Hits == 0 {
				continue
			}
			at := now + engine.Micros(d.RetryAfter/time.Microsecond)
			if k.Cost <= 1 && at > now+longest {
				t.Fatalf("a hit waits %v, longer than %d µs", d.RetryAfter, longest)
			}
			if at > 2*end {
				return
			}
			fits := k.Cost <= max(l.Hits, l.Burst+l.Debt)
			if l.Burst > 0 {
				fits = k.Cost <= l.Burst+l.Debt
			}
			if got := c.look(at, k).Admitted == 1; got != fits {
				t.Fatalf("%d at %d: admitted %v after %v, want %v", k.Cost, now, got, d.RetryAfter, fits)
			}
			if fits && c.look(at-1, k).Admitted == 1 {
				t.Fatalf("%d at %d passes before %v", k.Cost, now, d.RetryAfter)
			}
		}
	})
}

// longestWait returns the maximum wait of a single hit.
func longestWait(l *engine.Limit) engine.Micros {
	longest := l.Window + l.FillInterval
	switch {
	case l.Algorithm == engine.SlidingWindow:
		longest += l.Window/engine.Micros(l.Precision) + 1
	case l.Algorithm == engine.TokenBucket && l.Hits > 0:
		depth := l.Debt
		if l.CountRefused {
			depth = l.Burst
		}
		debt := new(big.Int).Mul(big.NewInt(int64(l.Window)), new(big.Int).SetUint64(depth))
		longest += engine.Micros(debt.Div(debt, new(big.Int).SetUint64(l.Hits)).Int64()) + 2
	}
	return longest
}

// TestTakeMany checks that a take of n equals n takes, followed by Extra takes up to the first rejection.
func TestTakeMany(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := enginetest.Limits().Draw(t, "limits")
		var p *engine.Penalty
		if rapid.IntRange(0, 3).Draw(t, "gated") == 0 {
			p = enginetest.Penalty().Draw(t, "penalty")
		}
		many, single := newCounter(l, p), newCounter(l, p)
		now := enginetest.Start
		for range rapid.IntRange(1, 15).Draw(t, "takes") {
			now += enginetest.Later(l).Draw(t, "later")
			k := enginetest.Take(l).Draw(t, "take")
			if k.Cost == 0 || p != nil {
				k.Extra = 0
			}
			d := many.take(now, k)
			if got, want := d.Admitted, one(t, single, now, k, d); got != want {
				t.Fatalf("%+v at %d by %s: %d at once, %d one by one", k, now, text(l), got, want)
			}
		}
	})
}

// one takes k one by one, and compares the results with d, the decision of a single call.
func one(t *rapid.T, c *counter, now engine.Micros, k engine.Take, d engine.Decision) (admitted uint64) {
	step := k
	step.Count, step.Extra = 1, 0
	var last engine.Decision
	for i := range k.Count {
		last = c.take(now, step)
		if left := d.Left - min(d.Left, i*k.Cost); i <= d.Admitted && len(c.limits) == 1 && k.Owner == "" && last.Left != left && last.Penalty == 0 {
			t.Fatalf("%+v by %s: the %d. finds %d left, not %d", k, text(c.limits), i+1, last.Left, left)
		}
		admitted += last.Admitted
	}
	if admitted < k.Count && last.RetryAfter != d.RetryAfter {
		t.Fatalf("%+v by %s: retry after %v at once, after %v one by one", k, text(c.limits), d.RetryAfter, last.RetryAfter)
	}
	if admitted == k.Count {
		for range k.Extra {
			if c.look(now, step).Admitted == 0 {
				break
			}
			admitted += c.take(now, step).Admitted
		}
	}
	return admitted
}

// TestLook checks that peeks and checks change nothing, except that buckets begin to fill, and that they agree with the next take.
func TestLook(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := enginetest.Limits().Draw(t, "limits")
		looked, other := newCounter(l, nil), newCounter(l, nil)
		now := enginetest.Start
		for range rapid.IntRange(1, 15).Draw(t, "takes") {
			now += enginetest.Later(l).Draw(t, "later")
			k := enginetest.Take(l).Draw(t, "take")
			k.Extra = 0
			seen := looked.look(now, k)
			if k.Cost == 0 {
				other.look(now, k)
				continue
			}
			got, want := looked.take(now, k), other.take(now, k)
			if got != want {
				t.Fatalf("%+v by %s: %+v after a look, %+v without", k, text(l), got, want)
			}
			if seen.Admitted != got.Admitted {
				t.Fatalf("%+v by %s: the look admits %d, the take %d", k, text(l), seen.Admitted, got.Admitted)
			}
		}
	})
}
