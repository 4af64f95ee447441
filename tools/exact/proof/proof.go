// Package proof says what a history of calls proves about the server that answered them.
//
// A client knows of each hit only that it was spent between sending the request and receiving the answer. So a history
// proves that too much was admitted only if no choice of a moment within each of these intervals meets the bound of the
// algorithm. What is counted against a bound are the hits whose intervals lie entirely within a span of time, less all
// that may have been refunded during it: wherever they were spent, it was in that span. All else is in the server's
// favour: hits whose interval reaches beyond the span, calls without an answer, and rates of settings that may have been
// in use.
//
// The bounds are those of docs/design.md, section 4, for settings that alternate: the largest burst and the largest rate
// of those in use.
package proof

import (
	"cmp"
	"math"
	"slices"
)

// Micros is a time in microseconds since the Unix epoch, by the client's clock, or a span of microseconds.
type Micros int64

// forever is later than any time.
const forever Micros = math.MaxInt64 / 4

// Kind is what a call wants from a counter.
type Kind uint8

// What a call may want.
const (
	Take   Kind = iota // spend hits
	Peek               // spend nothing; see how the counter stands
	Refund             // refund hits
)

// Outcome is what became of a call.
type Outcome uint8

// What may become of a call.
const (
	Unanswered Outcome = iota // an error or a timeout: it may have been carried out, then or later
	Admitted
	Rejected
)

// Call is one call on a counter and its outcome.
type Call struct {
	Sent, Done Micros // before the request was sent, and after the answer arrived
	Replica    int    // which was asked
	Kind       Kind
	Note       string // which call it was, where that is not obvious
	Hits       int64
	Owner      string // of slots; empty where slots have no owner
	Outcome    Outcome
	Under      []*Setting // one of these decided; one alone if the answer tells
	Wait       Micros     // until its turn in a leaky bucket, rounded up by less than WaitUnit
}

// WaitUnit is the unit in which servers tell the wait for a turn.
const WaitUnit Micros = 1000

// Excess is what a history proves to be too much.
type Excess struct {
	Counter Counter
	Promise string // the bound in words
	Turns   bool   // it is about turns, not about when hits were admitted

	Shortest Span    // the one with the fewest calls
	Worst    Span    // the one that is furthest above its bound
	Calls    []*Call // those that were admitted in Shortest, in order of their answers
}

// Span is a span of time in which too much was admitted.
type Span struct {
	From, To Micros
	Calls    int
	Hits     int64   // admitted for certain, less those refunded
	Most     float64 // how many may be
}

func (s *Span) over() float64 { return float64(s.Hits) - s.Most }

// Check returns what calls prove, for every counter in which they were counted. Replicas is how many there were.
func Check(calls []Call, replicas int) []*Excess {
	var all []*Excess
	for _, c := range Counters(calls) {
		v := newView(calls, c)
		for _, e := range v.check(replicas) {
			if e != nil {
				e.Counter = c
				all = append(all, e)
			}
		}
	}
	return all
}

// check tries every bound of the counter's algorithm.
func (v *view) check(replicas int) []*Excess {
	switch v.counter.Algorithm {
	case FixedWindow:
		return v.fixedWindow()
	case SlidingWindow:
		return []*Excess{v.slidingWindow()}
	case SlidingLog:
		return v.longest("at most the largest limit in any window")
	case TokenBucket:
		return []*Excess{v.tokenBucket(replicas), v.startsLow(replicas)}
	case LeakyBucket:
		return []*Excess{v.leakyBucket(), v.turns()}
	case Concurrency:
		if v.owners {
			return []*Excess{v.held()}
		}
		return v.longest("at most the largest limit held at once")
	}
	return nil
}

// view is what calls tell about one counter.
type view struct {
	counter Counter
	hits    []hit   // admitted for certain, in the order of their ends
	writes  []write // in the order of their beginnings
	gives   []write // the same; those of writes that refund
	calls   []write // the same; all that reached the counter, looks too
	owners  bool
}

// hit is an admitted take: spent at a time from..to.
type hit struct {
	from, to Micros
	n        int64
	limits   []*Limit // one of these admitted it
	call     *Call
}

// write is a call that may have written to the counter, at a time from..to.
type write struct {
	from, to Micros
	n        int64
	limits   []*Limit // by one of these
	sure     bool     // it has written
	call     *Call
}

// Counters returns the counters in which calls may have been counted, in order of their first calls.
func Counters(calls []Call) []Counter {
	var all []Counter
	seen := map[Counter]bool{}
	for i := range calls {
		for _, s := range calls[i].Under {
			for k := range s.Limits {
				if c := s.Limits[k].Counter(); !seen[c] {
					seen[c] = true
					all = append(all, c)
				}
			}
		}
	}
	return all
}

func newView(calls []Call, counter Counter) *view {
	v := &view{counter: counter}
	for i := range calls {
		c := &calls[i]
		limits, sure := c.limits(counter)
		if len(limits) == 0 {
			continue
		}
		v.owners = v.owners || c.Owner != ""
		w := write{from: c.Sent, to: c.Done, n: c.Hits, limits: limits, call: c}
		if c.Outcome == Unanswered || leased(limits) { // what is leased is fetched and refunded at other times
			w.to = forever
		}
		v.calls = append(v.calls, w)
		if c.Kind == Peek || c.Outcome == Rejected && !countsRejected(limits) {
			continue
		}
		w.sure = sure && c.Outcome != Unanswered
		v.writes = append(v.writes, w)
		switch {
		case c.Kind == Refund:
			v.gives = append(v.gives, w)
		case sure && c.Outcome == Admitted:
			v.hits = append(v.hits, hit{c.Sent, c.Done, c.Hits, limits, c})
		}
	}
	v.sort()
	return v
}

func (v *view) sort() {
	slices.SortStableFunc(v.hits, func(a, b hit) int { return cmp.Compare(a.to, b.to) })
	for _, w := range [][]write{v.writes, v.gives, v.calls} {
		slices.SortStableFunc(w, func(a, b write) int { return cmp.Compare(a.from, b.from) })
	}
}

// In reports whether c may have been counted in the counter.
func (c *Call) In(counter Counter) bool {
	limits, _ := c.limits(counter)
	return len(limits) > 0
}

// limits returns the limits by which c may have been counted in the counter, and whether it was counted there for
// certain, if it was counted at all.
func (c *Call) limits(counter Counter) (limits []*Limit, sure bool) {
	sure = true
	for _, s := range c.Under {
		found := false
		for i := range s.Limits {
			if s.Limits[i].Counter() == counter {
				limits, found = append(limits, &s.Limits[i]), true
			}
		}
		sure = sure && found
	}
	return limits, sure
}

func leased(limits []*Limit) bool {
	return slices.ContainsFunc(limits, func(l *Limit) bool { return l.Lease > 0 })
}

func countsRejected(limits []*Limit) bool {
	return slices.ContainsFunc(limits, func(l *Limit) bool { return l.CountRefused })
}
