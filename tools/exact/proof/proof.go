// Package proof determines what a history of calls proves about the server that answered them.
//
// A client only knows that a hit was spent between sending the request and receiving the answer. So a history proves an excess
// only if no choice of a moment in each of these intervals satisfies the bound of the algorithm. The hits counted against a bound
// are those whose intervals lie entirely within a span of time, minus all that may have been refunded during it: they were spent
// in that span at any choice of moments. Everything else is in the server's favour: hits whose intervals extend beyond the span,
// calls without an answer, and rates of settings that may have been in use.
//
// The bounds are those of docs/design.md, section 4, for alternating settings: the largest burst and the largest rate in use.
package proof

import (
	"cmp"
	"math"
	"slices"
)

// Micros is a time in microseconds since the Unix epoch by the client's clock, or a duration in microseconds.
type Micros int64

// forever is later than any time.
const forever Micros = math.MaxInt64 / 4

// Kind is the kind of a call.
type Kind uint8

// The kinds of calls.
const (
	Take   Kind = iota // consume hits
	Peek               // read the state without consuming hits
	Refund             // refund hits
)

// Outcome is the outcome of a call.
type Outcome uint8

// The outcomes of calls.
const (
	Unanswered Outcome = iota // error or timeout; the call may take effect at any time
	Admitted
	Rejected
)

// Call is one call on a counter and its outcome.
type Call struct {
	Sent, Done Micros // before sending the request, and after receiving the answer
	Replica    int    // number of the called replica
	Kind       Kind
	Note       string // name of an unusual call
	Hits       int64
	Owner      string // owner of slots; empty without owners
	Outcome    Outcome
	Under      []*Setting // possible settings; a single one if the answer identifies it
	Wait       Micros     // until its turn in a leaky bucket, rounded up by less than WaitUnit
}

// WaitUnit is the unit of waits in answers.
const WaitUnit Micros = 1000

// Excess is a proven excess.
type Excess struct {
	Counter Counter
	Promise string // description of the bound
	Turns   bool   // concerns turns, not times of admission

	Shortest Span    // the span with the fewest calls
	Worst    Span    // the span furthest above its bound
	Calls    []*Call // admitted calls in Shortest, in order of their answers
}

// Span is a span of time with too many admitted hits.
type Span struct {
	From, To Micros
	Calls    int
	Hits     int64   // certainly admitted, minus possibly refunded
	Most     float64 // maximum permitted
}

func (s *Span) over() float64 { return float64(s.Hits) - s.Most }

// Check returns the excesses that calls prove, for every counter. replicas is the number of replicas.
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

// check checks every bound of the counter's algorithm.
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

// view is the calls of one counter.
type view struct {
	counter Counter
	hits    []hit   // certainly admitted, by end
	writes  []write // by begin
	gives   []write // refunds among writes, by begin
	calls   []write // all calls on the counter, including checks without hits, by begin
	owners  bool
}

// hit is an admitted take, spent between from and to.
type hit struct {
	from, to Micros
	n        int64
	limits   []*Limit // possible limits
	call     *Call
}

// write is a call that may have written to the counter between from and to.
type write struct {
	from, to Micros
	n        int64
	limits   []*Limit // possible limits
	sure     bool     // it has certainly written
	call     *Call
}

// Counters returns the counters that calls may have used, in order of their first calls.
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
		if c.Outcome == Unanswered || leased(limits) { // leases are fetched and refunded at other times
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

// In reports whether c may have used the counter.
func (c *Call) In(counter Counter) bool {
	limits, _ := c.limits(counter)
	return len(limits) > 0
}

// limits returns the limits by which c may have used the counter. sure means that c used no other counter.
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
