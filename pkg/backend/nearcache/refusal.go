package nearcache

import (
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// refusal is a refusal that is remembered. It is not changed once it is made.
type refusal struct {
	limits   engine.Limits // a copy: what a request brings along is its own
	penalty  engine.Penalty
	gated    bool // there is a penalty
	takes    bool // it answers takes too, which then are not counted
	probes   bool // it answers looks of cost 0 too
	cost     uint64
	at       engine.Micros // before the store was asked
	until    engine.Micros // remembered until
	lasts    bool          // the store will go on refusing then
	decision engine.Decision
}

// refusalOf makes a refusal of op, which the store answered, having been asked at the given time or later. It is nil where
// there is none, or none that may be remembered:
//   - of slots held at the same time, which anybody may release;
//   - of a cost that can never pass, which no time ends;
//   - of a look behind a penalty that a take would start.
func refusalOf(op *backend.Op, at, longest engine.Micros) *refusal {
	d := &op.Decision
	switch {
	case op.Err != nil || d.Admitted >= op.Take.Count:
		return nil
	case op.Mode == backend.Take:
	case op.Mode == backend.Look && d.Admitted == 0: // what a look admits is not spent, so the next one is admitted too
	default:
		return nil
	}
	cost := max(op.Take.Cost, 1)
	if d.RetryAfter <= 0 || !passable(op.Limits, cost) {
		return nil
	}
	span := min(sooner(micros(d.RetryAfter)), longest)
	counts := len(op.Limits) == 1 && op.Limits[0].CountRefused
	if op.Penalty != nil && (op.Penalty.On == engine.OnExceeded || counts && d.Penalty > 0) {
		span = min(span, sooner(micros(d.Penalty))) // afterwards a refusal starts the next one, or counts again
	}
	if span <= 0 {
		return nil
	}
	r := &refusal{
		limits: slices.Clone(op.Limits), takes: true, probes: true,
		cost: cost, at: at, until: at + span, lasts: span == longest, decision: *d,
	}
	if op.Penalty != nil {
		r.penalty, r.gated = *op.Penalty, true
	}
	left := d.Left - min(d.Left, d.Admitted*cost) // as the refused one of several met it
	if l := &op.Limits[0]; counts {
		// A window that refused hits have taken above its limit refuses everything to its end, whether more are counted or
		// not. One exactly at its limit still passes a look for nothing.
		over := d.Penalty > 0 || op.Mode == backend.Take || op.Take.Cost == 0
		r.takes = l.Algorithm == engine.FixedWindow && l.Align == engine.AlignClock && over
		r.probes = l.Algorithm != engine.FixedWindow || op.Take.Cost == 0 || op.Mode == backend.Take && d.Penalty == 0
		if op.Mode == backend.Take && l.Algorithm == engine.FixedWindow {
			left = 0
		}
	}
	r.decision.Admitted, r.decision.Left, r.decision.Wait, r.decision.Renewed = 0, left, 0, 0
	return r
}

// sooner is a span of the store's clock as one measures it whose own clock may lose 200 µs a second.
func sooner(span engine.Micros) engine.Micros { return span - (span+drift-1)/drift }

// drift is one part in 5,000.
const drift = 5000

// passable reports whether there is a time at which all limits would admit cost, and whether they are such that a
// refusal lasts.
func passable(limits engine.Limits, cost uint64) bool {
	for i := range limits {
		l := &limits[i]
		most := l.Hits
		switch l.Algorithm {
		case engine.FixedWindow, engine.SlidingWindow, engine.SlidingLog:
		case engine.TokenBucket, engine.LeakyBucket:
			most = l.Burst + l.Debt
		case engine.Concurrency:
			return false
		}
		if cost > most || l.Hits == 0 {
			return false
		}
	}
	return true
}

// live reports whether r is remembered at a time. A clock that was set back to before r was made has undone it.
func (r *refusal) live(now engine.Micros) bool { return r.at <= now && now < r.until }

// speaks reports whether r is of the counter that op means, by the same rule.
func (r *refusal) speaks(op *backend.Op) bool {
	if r.gated != (op.Penalty != nil) || r.gated && r.penalty != *op.Penalty || len(r.limits) != len(op.Limits) {
		return false
	}
	for i := range r.limits {
		if !r.limits[i].Equal(op.Limits[i]) {
			return false
		}
	}
	return true
}

// answers reports whether r says what op, of which it speaks, would be told.
func (r *refusal) answers(op *backend.Op) bool {
	if op.Take.Count == 0 || max(op.Take.Cost, 1) < r.cost {
		return false
	}
	if op.Take.Cost == 0 { // a look, whatever the mode
		return r.probes
	}
	return op.Mode == backend.Look || r.takes
}

// decide is what op is told at a time. Times count down from before the store was asked, so that they end no later than
// the store's. RetryAfter is that of the cost that was refused, than which a greater one may have to wait longer; Left is
// what that cost met, and Strictest, of which both and ResetAfter speak, the limit of a list that was the strictest then.
func (r *refusal) decide(op *backend.Op, now engine.Micros) engine.Decision {
	d := r.decision
	gone := time.Duration(now-r.at) * time.Microsecond
	d.ResetAfter = max(d.ResetAfter-gone, 0)
	if d.ResetAfter == 0 {
		d.Window = 0 // it has ended; what still refuses is a penalty
	}
	d.RetryAfter = max(d.RetryAfter-gone, 0)
	d.Penalty = max(d.Penalty-gone, 0)
	if len(r.limits) == 1 && op.Take.Cost > r.cost && !passable(r.limits, op.Take.Cost) {
		d.RetryAfter = max(d.ResetAfter, d.Penalty)
	}
	return d
}
