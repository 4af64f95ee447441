package engine

import (
	"fmt"
	"math"
	"math/bits"
)

// Bounds of a limit's numbers.
const (
	maxNumber           = math.MaxUint32
	maxStamps           = 10_000             // in a log, and slots that can be held
	maxWindow    Micros = 1 << 48            // 8.9 years
	maxFill             = 100 * 365.25 * day // longest time a bucket may take to fill from its lowest level, in µs
	day                 = 24 * 60 * 60 * 1e6
	maxPrecision        = 100
)

// prepared is what can be computed once per limit. It records the numbers it was computed from, so that it is never
// used for a limit whose numbers changed afterwards.
type prepared struct {
	rate   rate
	hits   uint64
	window Micros
}

// Prepared returns l with everything computed that can be computed once. It decides as l does, only faster.
func (l Limit) Prepared() Limit {
	if l.Hits > 0 && l.Window > 0 {
		l.prepared = prepared{rateOf(l.Hits, l.Window), l.Hits, l.Window}
	}
	return l
}

// Equal reports whether l and m are the same limit, prepared or not.
func (l Limit) Equal(m Limit) bool {
	if !l.Calendar.same(m.Calendar) {
		return false
	}
	l.prepared, m.prepared = prepared{}, prepared{}
	l.Calendar, m.Calendar = nil, nil
	return l == m
}

// FieldError describes what is wrong with one field of a [Limit] or a [Penalty].
type FieldError struct {
	Field string // its key in the rules, such as burst
	Text  string // what is wrong, and what would be accepted
}

// Error returns the field and the text, such as "burst is 0; it takes 1 to 4294967295".
func (e *FieldError) Error() string { return e.Field + " " + e.Text }

func wrong(field, format string, args ...any) error {
	return &FieldError{Field: field, Text: fmt.Sprintf(format, args...)}
}

// Validate returns nil if l is valid, or else a [*FieldError] that names the field and what would be accepted.
func (l Limit) Validate() error {
	if err := l.checkMeaning(); err != nil {
		return err
	}
	if err := l.checkNumbers(); err != nil {
		return err
	}
	if err := l.checkRefused(); err != nil {
		return err
	}
	return l.checkBucket()
}

// checkMeaning rejects fields that the algorithm does not use.
func (l *Limit) checkMeaning() error {
	a := l.Algorithm
	if a > Concurrency {
		return wrong("algorithm", "is not known; it takes %s", names(FixedWindow, Concurrency))
	}
	for _, f := range [...]struct {
		field string
		given bool
		means bool
		where string
	}{
		{"calendar", l.Calendar != nil, a == FixedWindow, "fixed_window"},
		{"align", l.Align != AlignClock, a == FixedWindow, "fixed_window"},
		{"precision", l.Precision != 0, a == SlidingWindow, "sliding_window"},
		{"burst", l.Burst != 0, a == TokenBucket || a == LeakyBucket, "token_bucket and leaky_bucket"},
		{"debt", l.Debt != 0, a == TokenBucket, "token_bucket"},
		{"initial", l.Initial != 0, a == TokenBucket, "token_bucket"},
		{"fill_interval", l.FillInterval != 0, a == TokenBucket, "token_bucket"},
	} {
		if f.given && !f.means {
			return wrong(f.field, "means nothing under %s; it belongs to %s", a, f.where)
		}
	}
	return nil
}

// checkNumbers checks the fields that every limit has, and those of sliding windows.
func (l *Limit) checkNumbers() error {
	switch {
	case l.Align > AlignFirst:
		return wrong("align", "is not known; it takes clock or first")
	case l.Align != AlignClock && l.Calendar != nil:
		return wrong("align", "is %s, and the windows of a calendar begin when it says; it takes clock there", l.Align)
	case l.Hits > maxNumber:
		return wrong("requests_per_unit", "is %d; it takes 0 to %d", l.Hits, uint64(maxNumber))
	case l.Hits > maxStamps && (l.Algorithm == SlidingLog || l.Algorithm == Concurrency):
		return wrong("requests_per_unit", "is %d; %s takes 0 to %d", l.Hits, l.Algorithm, maxStamps)
	case l.Window < 1 || l.Window > maxWindow:
		return wrong("unit_multiplier", "makes a window of %d µs; it takes from 1 µs to 2^48 µs (8.9 years)", l.Window)
	case l.Algorithm == SlidingWindow && (l.Precision < 1 || l.Precision > maxPrecision):
		return wrong("precision", "is %d; it takes 1 to %d", l.Precision, maxPrecision)
	case Micros(l.Precision) > l.Window:
		return wrong("precision", "is %d; a window of %d µs has at most as many sub-windows", l.Precision, l.Window)
	}
	return nil
}

// checkRefused checks that refused hits are counted only where they may be.
func (l *Limit) checkRefused() error {
	switch {
	case !l.CountRefused:
		return nil
	case l.Algorithm == LeakyBucket || l.Algorithm == Concurrency:
		return wrong("count_refused", "means nothing under %s; it takes false there", l.Algorithm)
	case l.Listed:
		return wrong("count_refused", "means nothing in rate_limits, whose refused hits never count; it takes false there")
	case l.Debt > 0:
		return wrong("count_refused", "does not go together with debt; one of them has to go")
	}
	return nil
}

// checkBucket checks the numbers of a bucket.
func (l *Limit) checkBucket() error {
	if l.Algorithm != TokenBucket && l.Algorithm != LeakyBucket {
		return nil
	}
	switch {
	case l.Burst > maxNumber || l.Burst == 0 && l.Hits > 0:
		return wrong("burst", "is %d; it takes 1 to %d", l.Burst, uint64(maxNumber))
	case l.Debt > maxNumber:
		return wrong("debt", "is %d; it takes 0 to %d", l.Debt, uint64(maxNumber))
	case l.Initial > l.Burst:
		return wrong("initial", "is %d; it takes 0 to the burst, which is %d", l.Initial, l.Burst)
	case l.FillInterval < 0 || l.FillInterval > maxWindow:
		return wrong("fill_interval", "is %d µs; it takes from 1 µs to 2^48 µs (8.9 years), or 0 for none", l.FillInterval)
	case l.Hits == 0:
		return nil
	}
	most := l.most()
	if l.Algorithm == LeakyBucket {
		most++ // a place that is partly free accepts a hit
	}
	if !l.fills(most) {
		return wrong("burst", "of %d takes over 100 years to fill, at %d hits per %d µs; it takes less", l.Burst, l.Hits, l.Window)
	}
	w := uint64(l.Window)
	if _, rest := muldiv(l.Hits%w, uint64(l.FillInterval)%w, w); rest != 0 {
		each := l.Window / Micros(gcd(w, l.Hits))
		return wrong("fill_interval", "of %d µs brings no whole number of tokens; it takes multiples of %d µs", l.FillInterval, each)
	}
	return nil
}

// fills reports whether that many hits are refilled within 100 years.
func (l *Limit) fills(hits uint64) bool {
	hi, lo := bits.Mul64(hits, uint64(l.Window))
	if hi >= l.Hits {
		return false
	}
	us, _ := bits.Div64(hi, lo, l.Hits)
	return us < maxFill
}

// Validate returns the error of the first limit that is not valid. It also rejects two limits of one algorithm and
// window, which would share a state.
func (l Limits) Validate() error {
	for i := range l {
		if err := l[i].Validate(); err != nil {
			return err
		}
		for j := range l[:i] {
			if l[i].SharesState(&l[j]) {
				return wrong("rate_limits", "has two limits of %s and one window; it takes one of them, the stricter", l[i].Algorithm)
			}
		}
	}
	return nil
}

// SharesState reports whether l and m, two limits of a list, have the same algorithm and window, so that only one of
// them may be there. Two time zones whose numbers collide, a chance of one in 2^49, count as the same.
func (l *Limit) SharesState(m *Limit) bool {
	if l.Calendar != nil && m.Calendar != nil {
		return l.Slot() == m.Slot()
	}
	return l.Algorithm == m.Algorithm && l.Window == m.Window && l.Calendar == m.Calendar
}
