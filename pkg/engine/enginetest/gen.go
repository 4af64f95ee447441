package enginetest

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

const (
	second engine.Micros = 1e6
	day                  = 86_400 * second
	year                 = 365 * day
)

// Start is a time in September 2026 at which every window drawn by [Limit] begins, except windows of a week or longer.
const Start = 20_720 * day

// Limit draws a limit that is valid on its own, outside a list.
func Limit() *rapid.Generator[engine.Limit] {
	return rapid.Custom(func(t *rapid.T) engine.Limit {
		algorithm := rapid.SampledFrom(slices.Collect(engine.Algorithms())).Draw(t, "algorithm")
		return LimitOf(algorithm).Draw(t, "limit")
	})
}

// LimitOf draws a limit of the given algorithm that is valid on its own, outside a list.
func LimitOf(a engine.Algorithm) *rapid.Generator[engine.Limit] {
	return rapid.Custom(func(t *rapid.T) engine.Limit {
		l := engine.Limit{Algorithm: a, Window: window().Draw(t, "window")}
		numbers(t, &l)
		if a == engine.SlidingWindow {
			l.Precision = rapid.OneOf(rapid.Uint32Range(1, 100), rapid.SampledFrom([]uint32{1, 6, 10, 60, 100})).Draw(t, "precision")
			l.Precision = min(l.Precision, uint32(min(l.Window, 100)))
		}
		if a == engine.FixedWindow {
			switch rapid.IntRange(0, 5).Draw(t, "lies") {
			case 0, 1:
				l.Align = engine.AlignFirst
			case 2:
				l.Calendar = calendar().Draw(t, "calendar")
				l.Window = nominal(l.Calendar)
			}
		}
		return l
	}).Filter(func(l engine.Limit) bool { return l.Validate() == nil })
}

// Changed draws a limit that shares the state of l but has other numbers, as after a reload of the rules.
func Changed(l engine.Limit) *rapid.Generator[engine.Limit] {
	return rapid.Custom(func(t *rapid.T) engine.Limit {
		c := engine.Limit{Algorithm: l.Algorithm, Window: l.Window, Precision: l.Precision, Listed: l.Listed, Calendar: l.Calendar}
		numbers(t, &c)
		if other := window().Draw(t, "window"); rapid.Bool().Draw(t, "rescaled") {
			if c.Window = other; c.Slot() != l.Slot() {
				c.Window = l.Window
			}
		}
		if l.Algorithm == engine.FixedWindow && l.Calendar == nil && rapid.Bool().Draw(t, "first") {
			c.Align = engine.AlignFirst
		}
		return c
	}).Filter(func(c engine.Limit) bool { return c.Validate() == nil })
}

// Limits draws one limit, or a list of up to four.
func Limits() *rapid.Generator[engine.Limits] {
	list := rapid.SliceOfN(Limit(), 2, 4)
	return rapid.Custom(func(t *rapid.T) engine.Limits {
		if rapid.IntRange(0, 3).Draw(t, "list") > 0 {
			return engine.Limits{Limit().Draw(t, "limit")}
		}
		l := engine.Limits(list.Draw(t, "limits"))
		for i := range l {
			l[i].Listed, l[i].CountRefused = true, false
		}
		return l
	}).Filter(func(l engine.Limits) bool { return l.Validate() == nil })
}

// window draws the length of a window: Envoy's units, their multiples, and lengths that divide nothing evenly.
func window() *rapid.Generator[engine.Micros] {
	return rapid.Custom(func(t *rapid.T) engine.Micros {
		unit := rapid.SampledFrom([]engine.Micros{second, second, 60 * second, 3600 * second, day, 7 * day, 30 * day, year}).Draw(t, "unit")
		multiple := rapid.SampledFrom([]engine.Micros{1, 1, 2, 5, 7, 10, 15}).Draw(t, "multiple")
		odd := rapid.SampledFrom([]engine.Micros{0, 0, 0, 100_000, 500_000, 1, 7, 999_983, 1 << 48}).Draw(t, "odd")
		if odd > 0 {
			return odd
		}
		if unit*multiple > 1<<48 {
			return unit
		}
		return unit * multiple
	})
}

// numbers draws hits and the numbers that depend on them.
func numbers(t *rapid.T, l *engine.Limit) {
	l.Hits = rapid.OneOf(
		rapid.Uint64Range(1, 12), rapid.Uint64Range(0, 1000), rapid.SampledFrom([]uint64{1, 3, 7, 10, 60, 100, 10_000, 150_000, 1<<32 - 1, 1 << 32, engine.MaxLimit}),
	).Draw(t, "hits")
	l.Hits = min(l.Hits, l.Algorithm.MostHits())
	bucket := engine.ParamBurst.TakenBy(l.Algorithm)
	switch {
	case l.Algorithm.Holds():
		l.Hits = min(l.Hits, 12)
	case bucket:
		l.Burst = max(1, rapid.OneOf(rapid.Just(l.Hits), rapid.Uint64Range(1, 20), rapid.Just(uint64(1<<32-1))).Draw(t, "burst"))
		if engine.ParamInitial.TakenBy(l.Algorithm) {
			l.Initial = l.Burst
		}
	}
	others(t, l)
	l.CountRefused = !bucket && engine.ParamCountRefused.TakenBy(l.Algorithm) && rapid.Bool().Draw(t, "count rejected")
	if !engine.ParamDebt.TakenBy(l.Algorithm) {
		return
	}
	switch rapid.IntRange(0, 5).Draw(t, "kind of bucket") {
	case 0:
		l.CountRefused = true
	case 1:
		l.Debt = rapid.OneOf(rapid.Uint64Range(1, 40), rapid.Just(uint64(1<<32-1))).Draw(t, "debt")
	}
	if rapid.IntRange(0, 3).Draw(t, "initial given") == 0 {
		l.Initial = min(l.Burst, rapid.Uint64Range(0, 20).Draw(t, "initial"))
	}
	if l.Hits > 0 && rapid.IntRange(0, 3).Draw(t, "steps") == 0 {
		each := l.Window / engine.Micros(gcd(uint64(l.Window), l.Hits))
		l.FillInterval = each * rapid.SampledFrom([]engine.Micros{1, 1, 2, 3, 10}).Draw(t, "step")
	}
}

// others draws small values for parameters without a generator of their own.
func others(t *rapid.T, l *engine.Limit) {
	for p := range engine.Parameters() {
		switch p {
		case engine.ParamBurst, engine.ParamPrecision, engine.ParamDebt, engine.ParamFillInterval, engine.ParamInitial, engine.ParamAlign,
			engine.ParamCalendar, engine.ParamTimezone, engine.ParamCountRefused, engine.ParamLateCharge:
		default:
			if p.TakenBy(l.Algorithm) && rapid.Bool().Draw(t, p.String()+" given") {
				p.Set(l, rapid.Uint64Range(0, 20).Draw(t, p.String()))
			}
		}
	}
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Penalty draws a penalty.
func Penalty() *rapid.Generator[*engine.Penalty] {
	return rapid.Custom(func(t *rapid.T) *engine.Penalty {
		p := &engine.Penalty{
			For:      rapid.SampledFrom([]engine.Micros{1, 500_000, second, 60 * second, 300 * second, day}).Draw(t, "for"),
			On:       rapid.SampledFrom([]engine.Trigger{engine.OnExceeded, engine.OnReached}).Draw(t, "on"),
			Escalate: rapid.SampledFrom([]uint32{1, 2, 3, 10, 1<<32 - 1}).Draw(t, "escalate"),
		}
		p.Max = min(1<<48, p.For*rapid.SampledFrom([]engine.Micros{1, 5, 1000}).Draw(t, "max"))
		return p
	})
}

// Take draws a take of l, with costs near its numbers and at the extremes of the protocol.
func Take(l engine.Limits) *rapid.Generator[engine.Take] {
	costs := []uint64{0, 1, 1 << 32, 1 << 53, 1<<53 + 1, 1 << 63, 1<<64 - 1}
	holders := false
	for _, x := range l {
		costs = append(costs, x.Hits-min(1, x.Hits), x.Hits, x.Hits+1, x.Hits/2, x.Burst, x.Burst+1, x.Burst+x.Debt, x.Initial)
		holders = holders || x.Algorithm.Holds()
	}
	return rapid.Custom(func(t *rapid.T) engine.Take {
		k := engine.Take{
			Cost:  rapid.OneOf(rapid.Just(uint64(1)), rapid.Uint64Range(0, 7), rapid.SampledFrom(costs)).Draw(t, "cost"),
			Count: rapid.SampledFrom([]uint64{1, 1, 1, 1, 2, 3, 40}).Draw(t, "count"),
			Extra: rapid.SampledFrom([]uint64{0, 0, 0, 0, 1, 5}).Draw(t, "extra"),
		}
		if holders {
			k.Owner = rapid.SampledFrom([]string{"", "", "a", "b"}).Draw(t, "owner")
		}
		if k.Owner != "" { // takes with an owner are not merged
			k.Count, k.Extra = 1, 0
		}
		return k
	})
}

// Later draws the time between two calls: none, a little, up to a time at which something changes for l, or a negative one.
func Later(l engine.Limits) *rapid.Generator[engine.Micros] {
	moves := []engine.Micros{0, 0, 0, 1, 1000, second}
	for _, x := range l {
		moves = append(moves, x.Window, x.Window-1, x.Window/2, x.FillInterval, 2*x.Window)
		if x.Hits > 0 {
			moves = append(moves, x.Window/engine.Micros(x.Hits), x.Window/engine.Micros(x.Hits)+1)
		}
		if x.Precision > 0 {
			moves = append(moves, x.Window/engine.Micros(x.Precision))
		}
	}
	back := []engine.Micros{1, second, l[0].Window / 2, l[0].Window, 3600 * second}
	return rapid.Custom(func(t *rapid.T) engine.Micros {
		if rapid.IntRange(0, 15).Draw(t, "back") == 0 {
			return -rapid.SampledFrom(back).Draw(t, "by")
		}
		return rapid.OneOf(rapid.SampledFrom(moves), rapid.Map(rapid.Int64Range(0, 3_000_000), func(n int64) engine.Micros { return engine.Micros(n) })).Draw(t, "later")
	})
}
