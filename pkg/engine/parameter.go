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

// Parameter is a key with which a rule says more about a limit than its algorithm, its number and its window. A caller that
// reads, writes, checks or compares limits asks the table of parameters rather than naming fields of [Limit].
type Parameter uint8

// The parameters, in the order in which people read them. The value of one may depend on those before it.
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

// Kind says what the value of a parameter is, and so what the number that stands for it means.
type Kind uint8

// The kinds.
const (
	KindNumber Kind = iota
	KindTime        // in microseconds
	KindFlag        // 0 for false
	KindWord        // the number of a word
	KindZone        // a time zone; 0 for UTC
)

// parameter is a row of the table of parameters.
type parameter struct {
	key     string
	kind    Kind
	takers  takers   // the algorithms that take it
	single  bool     // it means nothing in a list
	least   uint64   // the smallest value
	most    uint64   // the largest value
	words   []string // in the order of their values
	accepts string   // the values that it takes, for people, if the bounds and the words do not say it
	usual   string   // the value without the key, for people; see [Parameter.Usual]
	about   string   // what it is, in a sentence for editors
}

// takers is a set of algorithms.
type takers uint64

// Who takes a parameter.
const (
	windows  takers = 1 << FixedWindow
	cells    takers = 1 << SlidingWindow
	tokens   takers = 1 << TokenBucket
	buckets         = tokens | 1<<LeakyBucket
	counting        = windows | cells | 1<<SlidingLog | tokens // those that can count what they reject
)

// parameters has a row for each parameter. Functions in it would make each limit that they are called with escape to the
// heap, so what reads and writes the fields stands below: [Limit.values], [Parameter.Set] and [Parameter.Usual]. What
// bounds cannot say stands in [Limit.Validate].
//
//nolint:gochecknoglobals // a table that is never written to; it is asked on the way of a request
var parameters = [...]parameter{
	ParamBurst:        {key: "burst", takers: buckets, least: 1, most: maxNumber, usual: "`requests_per_unit`", about: "The most tokens of a token_bucket, or the places in the queue of a leaky_bucket."},
	ParamPrecision:    {key: "precision", takers: cells, least: 1, most: maxPrecision, usual: "10", about: "The number of parts of a window; old hits expire part by part."},
	ParamDebt:         {key: "debt", takers: tokens, most: maxNumber, usual: "0", about: "How far below zero the number of tokens may go."},
	ParamFillInterval: {key: "fill_interval", kind: KindTime, takers: tokens, most: uint64(maxWindow), accepts: "a time, such as 500ms, 30s, 5m or 24h", usual: "tokens come one by one", about: "Tokens come in steps, at multiples of this time, a whole number of them each time."},
	ParamInitial:      {key: "initial", takers: tokens, most: maxNumber, accepts: "0 to burst", usual: "`burst`", about: "The number of tokens for a key that was not seen before."},
	ParamAlign:        {key: "align", kind: KindWord, takers: windows, most: 1, words: []string{AlignClock: "clock", AlignFirst: "first"}, usual: "`clock`", about: "Whether windows are aligned to the clock, or begin with the first hit."},
	ParamCalendar:     {key: "calendar", kind: KindFlag, takers: windows, most: math.MaxUint64, words: []string{"false", "true"}, usual: "`false`", about: "Windows are those of the calendar, with their actual lengths."},
	ParamTimezone:     {key: "timezone", kind: KindZone, takers: windows, most: math.MaxUint64, accepts: "a name of the IANA database", usual: "`UTC`", about: "The time zone in which the windows of a calendar begin at midnight."},
	ParamLateCharge:   {key: "late_charge", kind: KindFlag, takers: counting, single: true, most: 1, words: []string{"false", "true"}, usual: "`false`", about: "Whether hits above 0 charge for requests that have already run: they count in full, as with count_refused, and are never reported as rejections."},
	ParamCountRefused: {key: "count_refused", kind: KindFlag, takers: counting, single: true, most: 1, words: []string{"false", "true"}, usual: "`true` for `fixed_window`, else `false`", about: "Whether rejected hits count nevertheless, as charges after a request must. With rlqs, the default is false."},
}

const usualPrecision = 10

// values returns the values that l has, each 0 where its parameter means nothing. A calendar has a number that it shares
// only with calendars of the same windows.
func (l *Limit) values() [len(parameters)]uint64 {
	var zone uint64
	if l.Calendar != nil {
		zone = l.Calendar.zone.id
	}
	return [...]uint64{
		ParamBurst:        l.Burst,
		ParamPrecision:    uint64(l.Precision),
		ParamDebt:         l.Debt,
		ParamFillInterval: uint64(l.FillInterval),
		ParamInitial:      l.Initial,
		ParamAlign:        uint64(l.Align),
		ParamCalendar:     l.Calendar.slot(),
		ParamTimezone:     zone,
		ParamLateCharge:   flag(l.LateCharge),
		ParamCountRefused: flag(l.CountRefused),
	}
}

// Get returns the value that l has, which is 0 where the parameter means nothing. For a calendar it is a number that only
// calendars of the same windows share.
func (p Parameter) Get(l *Limit) uint64 { return l.values()[p] }

// Set sets the value of l, which has to be one that Get may return. It does nothing for calendar and timezone: a
// [Calendar] is made of the unit of the window too.
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

// Usual returns the value of a rule without the key. It may depend on the algorithm, the number and the parameters that
// come before.
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

func flag(on bool) uint64 {
	if on {
		return 1
	}
	return 0
}

// Parameters yields all parameters, in their order.
func Parameters() iter.Seq[Parameter] {
	return func(yield func(Parameter) bool) {
		for i := range parameters {
			if !yield(Parameter(i)) {
				return
			}
		}
	}
}

// String returns the parameter's key in the rules, such as burst.
func (p Parameter) String() string {
	if int(p) < len(parameters) {
		return parameters[p].key
	}
	return fmt.Sprintf("parameter(%d)", uint8(p))
}

// Kind returns what the value is.
func (p Parameter) Kind() Kind { return parameters[p].kind }

// TakenBy reports whether the parameter means something under a. Elsewhere it is 0.
func (p Parameter) TakenBy(a Algorithm) bool { return parameters[p].takers>>a&1 != 0 }

// Single reports whether the parameter means nothing in a list.
func (p Parameter) Single() bool { return parameters[p].single }

// Takers lists the algorithms under which the parameter means something.
func (p Parameter) Takers() []Algorithm {
	var all []Algorithm
	for a := range Algorithms() {
		if p.TakenBy(a) {
			all = append(all, a)
		}
	}
	return all
}

// Default returns the value of a rule without the key, for people.
func (p Parameter) Default() string { return parameters[p].usual }

// Accepts returns the values that the parameter takes, for people: "1 to 100", or "clock or first".
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

// About returns what the parameter is, in a sentence.
func (p Parameter) About() string { return parameters[p].about }

// Bounds returns the smallest and the largest value of a number.
func (p Parameter) Bounds() (least, most uint64) { return parameters[p].least, parameters[p].most }

// Words returns the words that a flag or a word may be.
func (p Parameter) Words() []string { return slices.Clone(parameters[p].words) }

// Word returns the value that a word stands for, if the parameter takes it.
func (p Parameter) Word(word string) (v uint64, ok bool) {
	i := slices.Index(parameters[p].words, word)
	return uint64(max(i, 0)), i >= 0
}

// Text returns the value that l has, as rules spell it.
func (p Parameter) Text(l *Limit) string {
	row, v := &parameters[p], p.Get(l)
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
