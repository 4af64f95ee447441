package engine

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
)

// MaxLimit is the largest number of hits per window, of a fixed window. Sums of a few such numbers stay below 2^53.
const MaxLimit = 1_000_000_000_000_000

// Bounds of a limit's fields.
const (
	maxNumber           = math.MaxUint32     // of a bucket's fields, and of hits per window of algorithms that multiply them by times
	maxStamps           = 10_000             // of a log, and slots of a concurrency limit
	maxWindow    Micros = 1 << 48            // 8.9 years
	maxFill             = 100 * 365.25 * day // maximum time to fill a bucket from its lowest level, in µs
	day                 = 24 * 60 * 60 * 1e6
	maxPrecision        = 100
)

// prepared caches values derived from a limit. It records the fields they depend on, so that it is ignored if these change.
type prepared struct {
	rate   rate
	hits   uint64
	window Micros
}

// Prepared returns l with all derived values cached. It decides like l, but faster.
func (l Limit) Prepared() Limit {
	if l.Hits > 0 && l.Window > 0 {
		l.prepared = prepared{rateOf(l.Hits, l.Window), l.Hits, l.Window}
	}
	return l
}

// Rescale replaces the number and the window of l, for a request with its own limit. The capacity of a bucket changes in proportion.
func (l *Limit) Rescale(hits uint64, window Micros) {
	if ParamBurst.TakenBy(l.Algorithm) {
		full := l.startsFull() // keep this property even if the burst is too small to scale
		if l.Hits == 0 {       // there is nothing to scale from
			l.Burst, l.Initial = hits, min(l.Initial, hits)
		} else {
			l.Burst = max(inProportion(l.Burst, hits, l.Hits), 1)
			l.Initial = min(inProportion(l.Initial, hits, l.Hits), l.Burst)
			l.Debt = inProportion(l.Debt, hits, l.Hits)
		}
		if full {
			l.Initial = l.Burst
		}
	}
	l.Hits, l.Window = hits, window
}

// startsFull reports whether l is a bucket whose initial content is its burst.
func (l *Limit) startsFull() bool { return ParamInitial.TakenBy(l.Algorithm) && l.Initial == l.Burst }

// inProportion returns n·to/from, rounded down, at most MaxHits.
func inProportion(n, to, from uint64) uint64 {
	hi, lo := bits.Mul64(n, to)
	if hi >= from {
		return MaxHits
	}
	q, _ := bits.Div64(hi, lo, from)
	return min(q, MaxHits)
}

// Raised returns l with a capacity that no state exceeds, so that a [Limits.Peek] at it tells all hits that a state has consumed: its
// capacity without those left. It returns l itself if l's algorithm never exceeds the capacity, or does not know by how much, or if l is a
// bucket that never fills.
func (l Limit) Raised() Limit {
	switch {
	case l.Algorithm == FixedWindow || l.Algorithm == SlidingWindow:
		l.Hits = MaxHits
	case l.Algorithm == TokenBucket && l.Hits > 0:
		room := l.Burst + l.Debt
		l.Burst, l.Initial = l.Burst+room, l.Initial+room
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

// Hash returns a hash of l. Equal limits have equal hashes, prepared or not.
func (l *Limit) Hash() uint64 {
	const odd = 0x9e3779b97f4a7c15
	kind := uint64(l.Algorithm) | flag(l.Listed)<<8
	h := bits.RotateLeft64((kind+1)*odd, 29)
	h = bits.RotateLeft64((h^l.Hits)*odd, 29)
	h = bits.RotateLeft64((h^uint64(l.Window))*odd, 29)
	for i, v := range l.values() {
		if v != 0 {
			h = bits.RotateLeft64((h^v)*(odd+2*uint64(i)), 29)
		}
	}
	return h
}

// FieldError describes an invalid field of a [Limit] or a [Penalty].
type FieldError struct {
	Field  string // the key of another field, if Field is invalid only in combination with its value
	Beside string // key of another field, if Field is invalid only in combination with its value
	Text   string // the mistake, and the accepted values
}

// Error returns the field and the text, such as "burst is 0; it must be 1 to 4294967295".
func (e *FieldError) Error() string { return e.Field + " " + e.Text }

// wrong returns an error of a field.
func wrong(field, format string, args ...any) *FieldError {
	return &FieldError{Field: field, Text: fmt.Sprintf(format, args...)}
}

// FieldErrors lists the invalid fields of a [Limit]. It omits errors that merely follow from another one.
type FieldErrors []*FieldError

// Error returns the errors, separated by semicolons.
func (e FieldErrors) Error() string {
	texts := make([]string, len(e))
	for i := range e {
		texts[i] = e[i].Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the errors.
func (e FieldErrors) Unwrap() []error {
	all := make([]error, len(e))
	for i := range e {
		all[i] = e[i]
	}
	return all
}

// add adds an error unless it is nil.
func (e *FieldErrors) add(err *FieldError) {
	if err != nil {
		e.insert(err)
	}
}

// insert adds an error unless it may follow from another one: its field is invalid already, or it is invalid only in combination with
// such a field.
func (e *FieldErrors) insert(err *FieldError) {
	if !e.about(err.Field) && !e.about(err.Beside) {
		*e = append(*e, err)
	}
}

// about reports whether any error is about a field.
func (e FieldErrors) about(field string) bool {
	return slices.ContainsFunc(e, func(err *FieldError) bool { return err.Field == field })
}

// Validate returns nil if l is valid, and otherwise [FieldErrors] that describe every invalid field.
func (l Limit) Validate() error {
	if int(l.Algorithm) >= len(algorithms) {
		return FieldErrors{wrong("algorithm", "is not known; it must be %s", AlgorithmNames())}
	}
	var errs FieldErrors
	errs.add(l.checkHits())
	errs.add(l.checkWindow())
	taker := takers(1) << l.Algorithm
	for i, v := range l.values() {
		row := &parameters[i]
		if row.takers&taker == 0 && v == 0 || row.takers&taker != 0 && row.least <= v && v <= row.most {
			continue
		}
		errs.add(Parameter(i).check(&l, v))
	}
	errs.add(l.checkPrecision())
	errs.add(l.checkRejected())
	errs.add(l.checkAlign())
	errs.add(l.checkInitial())
	if ParamBurst.TakenBy(l.Algorithm) && l.Hits > 0 && l.Window > 0 {
		errs.add(l.checkFilling())
		errs.add(l.checkSteps())
	}
	if len(errs) > 0 {
		return errs
	}
	return nil
}

func (l *Limit) checkHits() *FieldError {
	switch most := l.Algorithm.row().mostHits; {
	case l.Hits > MaxLimit:
		return wrong("requests_per_unit", "is %d; it must be 0 to %d", l.Hits, uint64(MaxLimit))
	case l.Hits > most:
		return wrong("requests_per_unit", "is %d; %s takes 0 to %d", l.Hits, l.Algorithm, most)
	}
	return nil
}

func (l *Limit) checkWindow() *FieldError {
	if l.Window < 1 || l.Window > maxWindow {
		return wrong("unit_multiplier", "makes a window of %d µs; it must be from 1 µs to 2^48 µs (8.9 years)", l.Window)
	}
	return nil
}

// check returns an error if v is not a valid value of p in l. The default value is always valid, regardless of the bounds: a bucket of no
// hits has no burst.
func (p Parameter) check(l *Limit, v uint64) *FieldError {
	switch row := &parameters[p]; {
	case !p.TakenBy(l.Algorithm) && v != 0:
		return wrong(row.key, "does not apply to %s; it belongs to %s", l.Algorithm, list(p.Takers(), "and"))
	case !p.TakenBy(l.Algorithm) || v == p.Usual(l):
		return nil
	case row.kind == KindTime:
		return wrong(row.key, "is %d µs; it must be from 1 µs to 2^48 µs (8.9 years), or 0 for none", Micros(v))
	case row.kind == KindWord:
		return wrong(row.key, "is not known; it must be %s", p.Accepts())
	default:
		return wrong(row.key, "is %d; it must be %s", v, p.Accepts())
	}
}

// checkPrecision checks that sub-windows are at least a microsecond long.
func (l *Limit) checkPrecision() *FieldError {
	if Micros(l.Precision) > l.Window && l.Window > 0 {
		return wrong("precision", "is %d; a window of %d µs has at most as many sub-windows", l.Precision, l.Window)
	}
	return nil
}

func (l *Limit) checkInitial() *FieldError {
	if l.Initial <= l.Burst {
		return nil
	}
	e := wrong("initial", "is %d; it must be 0 to the burst, which is %d", l.Initial, l.Burst)
	e.Beside = "burst"
	return e
}

func (l *Limit) checkAlign() *FieldError {
	if l.Align != AlignClock && l.Calendar != nil {
		return wrong("align", "is %s, and the windows of a calendar begin when it says; it must be clock there", ParamAlign.Text(l))
	}
	return nil
}

// checkRejected checks whether l may count rejected hits.
func (l *Limit) checkRejected() *FieldError {
	switch {
	case l.Calendar.Endless() && l.CountRefused && !l.LateCharge && !l.Listed:
		return wrong("count_refused", "must be false with unit: forever, since rejected hits would use up what is bought later; "+
			"or set late_charge: true, for hits that are charged afterwards")
	case l.LateCharge && l.Listed:
		return wrong("late_charge", "does not apply in rate_limits, whose rejected hits never count; it must be false there")
	case l.LateCharge && l.Debt > 0:
		return wrong("late_charge", "cannot be combined with debt; remove one of them")
	case l.LateCharge && !l.CountRefused:
		return wrong("count_refused", "cannot be false with late_charge, whose hits count even beyond the limit; remove one of them")
	case !l.CountRefused:
	case l.Listed:
		return wrong("count_refused", "does not apply in rate_limits, whose rejected hits never count; it must be false there")
	case l.Debt > 0:
		return wrong("count_refused", "cannot be combined with debt; remove one of them")
	}
	return nil
}

// DropsCharges reports whether l drops hits that do not fit, though it could count them as a late charge.
func (l *Limit) DropsCharges() bool { return !l.CountRefused && ParamLateCharge.TakenBy(l.Algorithm) }

// checkFilling checks that a bucket fills within maxFill.
func (l *Limit) checkFilling() *FieldError {
	if l.Debt > maxNumber {
		return nil
	}
	most := l.most()
	if l.Algorithm == LeakyBucket { // a partly free place accepts a hit
		most++
	}
	if l.fills(most) {
		return nil
	}
	return wrong("burst", "of %d takes over 100 years to fill, at %d hits per %d µs; it must be less", l.Burst, l.Hits, l.Window)
}

// checkSteps checks that each step adds a whole number of tokens.
func (l *Limit) checkSteps() *FieldError {
	if l.FillInterval == 0 {
		return nil
	}
	w := uint64(l.Window)
	if _, rest := muldiv(l.Hits%w, uint64(l.FillInterval)%w, w); rest != 0 {
		each := l.Window / Micros(gcd(w, l.Hits))
		return wrong("fill_interval", "of %d µs does not add a whole number of tokens; it must be a multiple of %d µs", l.FillInterval, each)
	}
	return nil
}

// fills reports whether the given hits are refilled within 100 years.
func (l *Limit) fills(hits uint64) bool {
	hi, lo := bits.Mul64(hits, uint64(l.Window))
	if hi >= l.Hits {
		return false
	}
	us, _ := bits.Div64(hi, lo, l.Hits)
	return us < maxFill
}

// Validate returns the errors of the first invalid limit. It also rejects two limits with the same algorithm and window, because they
// would share a state.
func (l Limits) Validate() error {
	for i := range l {
		if err := l[i].Validate(); err != nil {
			return err
		}
		for j := range l[:i] {
			if l[i].SharesState(&l[j]) {
				return wrong("rate_limits", "has two limits of %s and one window; keep the stricter one", l[i].Algorithm)
			}
		}
	}
	return nil
}

// SharesState reports whether l and m, two limits of a list, have the same algorithm and window, so that they cannot both be in the list.
// Time zones whose numbers collide, with a probability of 2^−49, count as the same.
func (l *Limit) SharesState(m *Limit) bool {
	if l.Calendar != nil && m.Calendar != nil {
		return l.Slot() == m.Slot()
	}
	return l.Algorithm == m.Algorithm && l.Window == m.Window && l.Calendar == m.Calendar
}
