package engine

import "iter"

// Algorithm identifies a way of counting.
type Algorithm uint8

// The algorithms, which docs/algorithms.md compares. The values are part of [Slot] and must not change.
const (
	FixedWindow   Algorithm = iota // counts hits in consecutive windows
	SlidingWindow                  // counts hits in the last window, cut into Precision sub-windows
	SlidingLog                     // records the time of each hit
	TokenBucket                    // a bucket of Burst tokens that refills at the limit's rate
	LeakyBucket                    // a queue of Burst places that empties at the limit's rate
	Concurrency                    // counts slots held at the same time
)

// Family identifies the layout of a [State]. Algorithms of the same family use the same fields:
//
//	fixed_window               at: start of the window; n: hits in it
//	sliding_window             n: hits in all of more.runs, each at the number of its sub-window
//	sliding_log                n: hits in all of more.runs, each at its time; at, part: the longest window and the
//	                           largest number of hits of the limits that took from it
//	token_bucket               n + part/us: hits spent as of at; full: when they will have come back
//	leaky_bucket               n + part/us: hits queued as of at; full: when the last of their turns is over
//	concurrency                n: slots in all of more.slots; at: when the newest was taken
//	a penalty's gate           at: its end; n: its length
//	reservations               n: hits of all in more.held, which are sorted by expiry, as is more.ended
type Family uint8

// The families.
const (
	FamilyWindow Family = iota // a count and the start of its window
	FamilyRuns                 // hits by time or by sub-window
	FamilyBucket               // hits that are consumed or queued, and the time of this state
	FamilySlots                // one record per take
)

// algorithm is a row of the table of algorithms. It holds the properties that other files need.
type algorithm struct {
	name       string // name in the rules
	letter     byte   // first letter of slot names; must not change
	family     Family
	perWindow  bool   // the slot name contains the window's length, even outside a list
	mostHits   uint64 // maximum of requests_per_unit
	rejected   bool   // rejected hits count by default
	leased     bool   // hits may be leased
	remembered bool   // a rejection is valid until RetryAfter, so it may be remembered
	queued     bool   // admitted hits wait for a turn
	held       bool   // hits are slots, which may have a holder
	reserved   bool   // hits may be reserved and settled later
}

// algorithms has one row per algorithm.
//
//nolint:gochecknoglobals // a read-only table on the request path
var algorithms = [...]algorithm{
	FixedWindow:   {name: "fixed_window", letter: 'f', family: FamilyWindow, perWindow: true, mostHits: MaxLimit, rejected: true, leased: true, remembered: true, reserved: true},
	SlidingWindow: {name: "sliding_window", letter: 'w', family: FamilyRuns, perWindow: true, mostHits: maxNumber, remembered: true, reserved: true},
	SlidingLog:    {name: "sliding_log", letter: 's', family: FamilyRuns, mostHits: maxStamps, remembered: true},
	TokenBucket:   {name: "token_bucket", letter: 'b', family: FamilyBucket, mostHits: maxNumber, leased: true, remembered: true, reserved: true},
	LeakyBucket:   {name: "leaky_bucket", letter: 'q', family: FamilyBucket, mostHits: maxNumber, remembered: true, queued: true},
	Concurrency:   {name: "concurrency", letter: 'c', family: FamilySlots, mostHits: maxStamps, held: true},
}

// row returns the row of a. If a is invalid, the row has no name.
func (a Algorithm) row() *algorithm {
	if int(a) < len(algorithms) {
		return &algorithms[a]
	}
	return &algorithm{letter: 'x'}
}

// Algorithms yields all algorithms.
func Algorithms() iter.Seq[Algorithm] {
	return func(yield func(Algorithm) bool) {
		for a := range algorithms {
			if !yield(Algorithm(a)) {
				return
			}
		}
	}
}

// Family returns the layout of a's state.
func (a Algorithm) Family() Family { return a.row().family }

// MostHits returns the maximum number of hits per window.
func (a Algorithm) MostHits() uint64 { return a.row().mostHits }

// Queues reports whether admitted hits wait for their turn. Takes of several requests cannot be merged then.
func (a Algorithm) Queues() bool { return a.row().queued }

// Holds reports whether hits are slots that are held for a time and may have an owner.
func (a Algorithm) Holds() bool { return a.row().held }

// Remembered reports whether a rejection is valid until its RetryAfter, unless hits are refunded.
func (a Algorithm) Remembered() bool { return a.row().remembered }

// UnitForever names the property of a limit whose window never ends.
const UnitForever = "unit: forever"

// BeyondCount returns the property of l that rules out a store that can only count all hits in clock-aligned windows, in words. It
// returns "" if there is none.
func (l *Limit) BeyondCount() string {
	switch {
	case l.Algorithm != FixedWindow:
		return "algorithm " + l.Algorithm.String()
	case l.Calendar.Endless():
		return UnitForever
	case l.Align != AlignClock:
		return "align: first"
	case !l.CountRefused:
		return "a limit that does not count rejected hits"
	}
	return ""
}

// Unleased returns the reason why hits of l cannot be leased: rate_limits, the key of a parameter, or the name of the algorithm. It
// returns "" if they can.
func (l *Limit) Unleased() string {
	switch a := l.Algorithm.row(); {
	case l.Listed:
		return "rate_limits"
	case l.Debt > 0:
		return "debt"
	case !a.leased:
		return a.name
	case l.Calendar.Endless():
		return UnitForever
	}
	return ""
}

// take decides a on l, admits at most a.most, and writes s if a.write is set. It sets d, which must be zero. It reports whether l, rather
// than another limit of a list, rejects any take of Count.
func (l *Limit) take(s *State, a *ask, d *Decision) (rejects bool) {
	if rejects = l.takeAlone(s, a, d); rejects && a.cost > l.MaxCost() {
		d.RetryAfter = Never
	}
	return rejects
}

// takeAlone implements take for a cost of at most MaxCost. For a larger one, RetryAfter is meaningless.
func (l *Limit) takeAlone(s *State, a *ask, d *Decision) (rejects bool) {
	switch l.Algorithm {
	case FixedWindow:
		return l.takeFixed(s, a, d)
	case SlidingWindow, SlidingLog:
		return l.takeRuns(s, a, d)
	case TokenBucket:
		return l.takeTokens(s, a, d)
	case LeakyBucket:
		return l.takeTurns(s, a, d)
	case Concurrency:
		return l.takeSlots(s, a, d)
	}
	return true
}

// room returns the number of takes of a that l would admit on its own.
func (l *Limit) room(s *State, a *ask) uint64 {
	switch l.Algorithm {
	case FixedWindow:
		var v fixedView
		v.set(l, s, a.now)
		return v.room(l, a)
	case SlidingWindow, SlidingLog:
		v := l.viewRuns(s, a.now)
		return a.fit(v.left(l))
	case TokenBucket:
		var v bucketView
		v.set(l, s, a.now)
		return v.tokens(l, a)
	case LeakyBucket:
		var v bucketView
		v.set(l, s, a.now)
		return a.fit(v.places(l))
	case Concurrency:
		v := l.viewSlots(s, a)
		return v.room(l, a)
	}
	return 0
}

// give refunds hits to l. a contains the time and the owner; window is the start of the window in which the hits were consumed, or 0.
func (l *Limit) give(s *State, a *ask, hits uint64, window Micros) Decision {
	switch l.Algorithm {
	case FixedWindow:
		return l.giveFixed(s, a.now, hits, window)
	case SlidingWindow, SlidingLog:
		return l.giveRuns(s, a.now, hits, 0)
	case TokenBucket:
		return l.giveTokens(s, a.now, hits)
	case LeakyBucket:
		return l.giveTurns(s, a.now)
	case Concurrency:
		return l.giveSlots(s, a, hits)
	}
	return Decision{}
}
