package engine_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
	"github.com/ratelimitd/ratelimitd/pkg/engine/enginetest"
)

// input is the fuzzer's input: each byte makes one choice.
type input []byte

func (in *input) byte() byte {
	if len(*in) == 0 {
		return 0
	}
	b := (*in)[0]
	*in = (*in)[1:]
	return b
}

// choose returns one of several values.
func choose[T any](in *input, of ...T) T { return of[int(in.byte())%len(of)] }

// limit returns a limit, which may be invalid.
func (in *input) limit(a engine.Algorithm) engine.Limit {
	l := engine.Limit{
		Algorithm: a,
		Hits:      choose(in, uint64(3), 0, 1, 2, 7, 10, 60, 1000, 10_000, 150_000, 1<<32-1),
		Window:    choose(in, second, 60*second, 1, 7, 100_000, 999_983, 3600*second, year, 1<<48),
	}
	switch a {
	case engine.FixedWindow:
		l.CountRefused = choose(in, true, false)
		switch in.byte() % 8 {
		case 0, 1, 2:
			l.Align = engine.AlignFirst
		case 3:
			l.Calendar = in.calendar()
		}
	case engine.SlidingWindow:
		l.Precision = choose(in, uint32(10), 1, 6, 7, 60, 100)
		l.CountRefused = choose(in, false, true)
	case engine.SlidingLog:
		l.CountRefused = choose(in, false, true)
	case engine.TokenBucket:
		l.Burst = choose(in, l.Hits, 1, 2, 5, 1000, 1<<32-1)
		l.Initial = choose(in, l.Burst, 0, 1)
		l.Debt = choose(in, uint64(0), 0, 1, 30, 1<<32-1)
		l.FillInterval = choose(in, engine.Micros(0), 0, l.Window, 100_000, second)
		l.CountRefused = choose(in, false, true)
	case engine.LeakyBucket:
		l.Burst = choose(in, l.Hits, 1, 2, 5, 1000, 1<<32-1)
	case engine.Concurrency:
		l.Hits = min(l.Hits, 10)
	default: // algorithms that only need valid parameters
		for p := range engine.Parameters() {
			if p.TakenBy(a) {
				p.Set(&l, choose(in, p.Usual(&l), 0, 1, 5, 1000, 1<<32-1))
			}
		}
	}
	return l
}

// calendar returns a calendar.
func (in *input) calendar() *engine.Calendar {
	zone := choose(in, enginetest.Zones()...)
	unit := choose(in, engine.CalendarMonth, engine.CalendarDay, engine.CalendarWeek, engine.CalendarYear)
	every := uint32(1)
	if unit == engine.CalendarMonth {
		every = choose(in, uint32(1), 2, 3, 4, 6, 12)
	}
	return enginetest.Calendar(zone, unit, every)
}

// take returns a take of l.
func (in *input) take(l *engine.Limit) engine.Take {
	k := engine.Take{
		Cost:  choose(in, 1, 0, 2, 3, l.Hits/2, l.Hits, l.Hits+1, l.Burst, l.Burst+l.Debt, 1<<53, 1<<64-1),
		Count: choose(in, uint64(1), 1, 1, 2, 3),
		Extra: choose(in, uint64(0), 0, 0, 2),
	}
	if l.Algorithm == engine.Concurrency {
		if k.Owner = choose(in, "", "a", "b"); k.Owner != "" {
			k.Count, k.Extra = 1, 0
		}
	}
	return k
}

// play compares the engine with its twin until the input is consumed.
func (in *input) play(t *testing.T, c *counter) {
	t.Helper()
	if c.limits.Validate() != nil {
		return
	}
	var m enginetest.Model
	now := midnight
	for range 24 {
		if len(*in) == 0 {
			return
		}
		l := &c.limits[int(in.byte())%len(c.limits)]
		now += choose(in, 0, 1, l.Window/2, l.Window-1, l.Window, l.Window/engine.Micros(l.Hits+1), 100_000, second, -1, -second, -l.Window)
		what := choose(in, "take", "take", "take", "take", "look", "give", "reset", "force")
		k := in.take(l)
		got, want := both(c, &m, now, what, k)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s %+v at %d by %s (-model +engine):\n%s", what, k, now-midnight, text(c.limits), diff)
		}
	}
}

// fuzz compares an engine with its twin.
func fuzz(f *testing.F, a engine.Algorithm) {
	f.Helper()
	f.Fuzz(func(t *testing.T, data []byte) {
		in := input(data)
		in.play(t, newCounter(engine.Limits{in.limit(a)}, nil))
	})
}

func FuzzFixedWindow(f *testing.F)   { fuzz(f, engine.FixedWindow) }
func FuzzSlidingWindow(f *testing.F) { fuzz(f, engine.SlidingWindow) }
func FuzzSlidingLog(f *testing.F)    { fuzz(f, engine.SlidingLog) }
func FuzzTokenBucket(f *testing.F)   { fuzz(f, engine.TokenBucket) }
func FuzzLeakyBucket(f *testing.F)   { fuzz(f, engine.LeakyBucket) }
func FuzzConcurrency(f *testing.F)   { fuzz(f, engine.Concurrency) }

// FuzzAlgorithm covers algorithms without a fuzz target of their own, and also the others.
func FuzzAlgorithm(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		in := input(data)
		all := slices.Collect(engine.Algorithms())
		slices.Reverse(all) // newest first
		in.play(t, newCounter(engine.Limits{in.limit(choose(&in, all...))}, nil))
	})
}

// limits returns one limit or a list.
func (in *input) limits() engine.Limits {
	var l engine.Limits
	for range choose(in, 2, 1, 3) {
		l = append(l, in.limit(choose(in, slices.Collect(engine.Algorithms())...)))
	}
	for i := range l {
		if l[i].Listed = len(l) > 1; l[i].Listed {
			l[i].CountRefused = false
		}
	}
	return l
}

func FuzzList(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		in := input(data)
		in.play(t, newCounter(in.limits(), nil))
	})
}

func FuzzPenalty(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		in := input(data)
		p := &engine.Penalty{
			For:      choose(&in, second, 1, 300*second, 1<<48),
			On:       choose(&in, engine.OnExceeded, engine.OnReached),
			Escalate: choose(&in, uint32(1), 2, 10, 1<<32-1),
		}
		p.Max = min(1<<48, p.For*choose(&in, engine.Micros(1), 3, 1000))
		in.play(t, newCounter(in.limits(), p))
	})
}
