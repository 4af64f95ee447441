package engine

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:generate go test -run ^TestDocs$ . -rewrite

// Parameter identifies a rule's key for a property of a limit other than its algorithm, number and window. Code that reads, writes,
// validates or compares limits uses the table of parameters instead of the fields of [Limit].
type Parameter uint8

// The parameters, in reading order. The default of a parameter may depend on earlier ones.
const (
	ParamBurst Parameter = iota
	ParamPrecision
	ParamDebt
	ParamFillInterval
	ParamInitial
	ParamAlign
	ParamCalendar
	ParamTimezone
	ParamLateCharge
	ParamCountRefused
)

// Kind is the type of a parameter's value, and so the meaning of its numeric representation.
type Kind uint8

// The kinds.
const (
	KindNumber Kind = iota
	KindTime        // in microseconds
	KindFlag        // 0 for false
	KindWord        // index of a word
	KindZone        // a time zone; 0 for UTC
)

// parameter is a row of the table of parameters.
type parameter struct {
	key     string
	kind    Kind
	takers  takers   // algorithms that use it
	single  bool     // meaningless in a list
	least   uint64   // minimum
	most    uint64   // maximum
	words   []string // indexed by value
	accepts string   // accepted values for people; empty if the bounds and words describe them
	usual   string   // default value for people; see [Parameter.Usual]
	about   string   // description, a sentence for editors
}

// takers is a set of algorithms.
type takers uint64

// Sets of algorithms that use a parameter.
const (
	windows  takers = 1 << FixedWindow
	cells    takers = 1 << SlidingWindow
	tokens   takers = 1 << TokenBucket
	buckets         = tokens | 1<<LeakyBucket
	counting        = windows | cells | 1<<SlidingLog | tokens // algorithms that can count rejected hits
)

// parameters has one row per parameter. It contains no functions, because calling one with a limit would move the limit to the heap.
// [Limit.values], [Parameter.Set] and [Parameter.Usual] access the fields instead. [Limit.Validate] checks conditions other than bounds.
//
//nolint:gochecknoglobals // a read-only table on the request path
var parameters = [...]parameter{
	ParamBurst:        {key: "burst", takers: buckets, least: 1, most: maxNumber, usual: "`requests_per_unit`", about: "The most tokens of a token_bucket, or the places in the queue of a leaky_bucket."},
	ParamPrecision:    {key: "precision", takers: cells, least: 1, most: maxPrecision, usual: "10", about: "The number of parts in a window; old hits expire part by part."},
	ParamDebt:         {key: "debt", takers: tokens, most: maxNumber, usual: "0", about: "How far below zero the number of tokens may go."},
	ParamFillInterval: {key: "fill_interval", kind: KindTime, takers: tokens, most: uint64(maxWindow), accepts: "a time, such as 500ms, 30s, 5m or 24h", usual: "tokens are added one by one", about: "Tokens are added in steps, a whole number at each multiple of this time."},
	ParamInitial:      {key: "initial", takers: tokens, most: maxNumber, accepts: "0 to burst", usual: "`burst`", about: "The number of tokens that a new key starts with."},
	ParamAlign:        {key: "align", kind: KindWord, takers: windows, most: 1, words: []string{AlignClock: "clock", AlignFirst: "first"}, usual: "`clock`", about: "Whether windows are aligned to the clock or begin with the first hit."},
	ParamCalendar:     {key: "calendar", kind: KindFlag, takers: windows, most: math.MaxUint64, words: []string{"false", "true"}, accepts: "false, true, or when windows begin", usual: "`false`", about: "Windows are those of the calendar, with their actual lengths: true, or a map with the time at which they begin."},
	ParamTimezone:     {key: "timezone", kind: KindZone, takers: windows, most: math.MaxUint64, accepts: "a name in the IANA database", usual: "`UTC`", about: "The time zone in which the windows of a calendar begin at midnight."},
	ParamLateCharge:   {key: "late_charge", kind: KindFlag, takers: counting, single: true, most: 1, words: []string{"false", "true"}, usual: "`false`", about: "Whether hits above 0 charge for requests that have already run: they count in full, as with count_refused, and are never reported as rejections."},
	ParamCountRefused: {key: "count_refused", kind: KindFlag, takers: counting, single: true, most: 1, words: []string{"false", "true"}, usual: "`true` for `fixed_window`, else `false`", about: "Whether rejected hits count too, as charges after a request must. With rlqs, the default is false."},
}

// usualPrecision is the default of ParamPrecision.
const usualPrecision = 10

// values returns the parameters of l, indexed by Parameter; those that do not apply are 0. Calendars have the same value only if their
// windows are the same.
func (l *Limit) values() [len(parameters)]uint64 {
	var calendar, zone uint64
	if l.Calendar != nil && !l.Calendar.Endless() { // an endless calendar is a unit, not a parameter
		calendar, zone = l.Calendar.slot(), l.Calendar.zone.id
	}
	return [...]uint64{
		ParamBurst:        l.Burst,
		ParamPrecision:    uint64(l.Precision),
		ParamDebt:         l.Debt,
		ParamFillInterval: uint64(l.FillInterval),
		ParamInitial:      l.Initial,
		ParamAlign:        uint64(l.Align),
		ParamCalendar:     calendar,
		ParamTimezone:     zone,
		ParamLateCharge:   flag(l.LateCharge),
		ParamCountRefused: flag(l.CountRefused),
	}
}

// Get returns the value of p in l, or 0 if p does not apply. Calendars have the same value only if their windows are the same.
func (p Parameter) Get(l *Limit) uint64 { return l.values()[p] }

// Set sets the value of p in l, which must be one that Get can return. It ignores calendar and timezone, because a [Calendar] also
// depends on the unit of the window.
func (p Parameter) Set(l *Limit, v uint64) {
	switch p {
	case ParamBurst:
		l.Burst = v
	case ParamPrecision:
		l.Precision = uint32(v)
	case ParamDebt:
		l.Debt = v
	case ParamFillInterval:
		l.FillInterval = Micros(v)
	case ParamInitial:
		l.Initial = v
	case ParamAlign:
		l.Align = Align(v)
	case ParamLateCharge:
		l.LateCharge = v != 0
	case ParamCountRefused:
		l.CountRefused = v != 0
	case ParamCalendar, ParamTimezone:
	}
}

// Usual returns the default of p in l. It may depend on the algorithm, the number and earlier parameters.
func (p Parameter) Usual(l *Limit) uint64 {
	switch p {
	case ParamBurst:
		return l.Hits
	case ParamPrecision:
		return usualPrecision
	case ParamInitial:
		return l.Burst
	case ParamCountRefused:
		return flag((l.Algorithm.row().rejected || l.LateCharge) && !l.Listed)
	case ParamDebt, ParamFillInterval, ParamAlign, ParamCalendar, ParamTimezone, ParamLateCharge:
	}
	return 0
}

// flag returns 1 for true and 0 for false.
func flag(on bool) uint64 {
	if on {
		return 1
	}
	return 0
}

// Parameters yields all parameters in order.
func Parameters() iter.Seq[Parameter] {
	return func(yield func(Parameter) bool) {
		for i := range parameters {
			if !yield(Parameter(i)) {
				return
			}
		}
	}
}

// String returns the key in rules, such as burst.
func (p Parameter) String() string {
	if int(p) < len(parameters) {
		return parameters[p].key
	}
	return fmt.Sprintf("parameter(%d)", uint8(p))
}

// Kind returns the type of p's value.
func (p Parameter) Kind() Kind { return parameters[p].kind }

// TakenBy reports whether p applies to a. If it does not, its value is 0.
func (p Parameter) TakenBy(a Algorithm) bool { return parameters[p].takers>>a&1 != 0 }

// Single reports whether p is meaningless in a list.
func (p Parameter) Single() bool { return parameters[p].single }

// Takers returns the algorithms that p applies to.
func (p Parameter) Takers() []Algorithm {
	var all []Algorithm
	for a := range Algorithms() {
		if p.TakenBy(a) {
			all = append(all, a)
		}
	}
	return all
}

// Default returns the default of p, for people.
func (p Parameter) Default() string { return parameters[p].usual }

// Accepts returns the accepted values, for people: "1 to 100", or "clock or first".
func (p Parameter) Accepts() string {
	switch row := &parameters[p]; {
	case row.accepts != "":
		return row.accepts
	case row.words != nil:
		return strings.Join(row.words, " or ")
	default:
		return fmt.Sprintf("%d to %d", row.least, row.most)
	}
}

// About describes p in a sentence.
func (p Parameter) About() string { return parameters[p].about }

// Bounds returns the minimum and the maximum of a number.
func (p Parameter) Bounds() (least, most uint64) { return parameters[p].least, parameters[p].most }

// Words returns the words of a flag or word.
func (p Parameter) Words() []string { return slices.Clone(parameters[p].words) }

// Word returns the value of a word. ok is false if p does not accept it.
func (p Parameter) Word(word string) (v uint64, ok bool) {
	i := slices.Index(parameters[p].words, word)
	return uint64(max(i, 0)), i >= 0
}

// Text formats the value of p in l as in rules.
func (p Parameter) Text(l *Limit) string {
	row, v := &parameters[p], p.Get(l)
	if p == ParamCalendar && l.Calendar != nil {
		if from, other := l.Calendar.Begin(); other {
			return from.String()
		}
	}
	switch row.kind {
	case KindFlag, KindWord:
		return row.words[min(v, uint64(len(row.words)-1))]
	case KindTime:
		return (time.Duration(v) * time.Microsecond).String()
	case KindZone:
		if l.Calendar != nil {
			return l.Calendar.Location().String()
		}
		return time.UTC.String()
	case KindNumber:
	}
	return strconv.FormatUint(v, 10)
}
