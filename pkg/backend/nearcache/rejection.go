package nearcache

import (
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// rejection is a remembered rejection. It is immutable.
type rejection struct {
	limits        engine.Limits   // a copy, because the caller may reuse its own
	penalty       *engine.Penalty // likewise; nil if there is none
	rejectsTakes  bool            // it answers takes too, which are then not counted
	rejectsProbes bool            // it answers looks of cost 0 too
	cost          uint64
	at            engine.Micros // before the store was asked
	until         engine.Micros // remembered until
	renewed       chan struct{} // closed when the store was asked again; nil unless it will still reject at the time until
	decision      engine.Decision
}

// rejectionOf returns the rejection in op, which the store has answered, having been asked at the given time or later. It
// returns nil if there is none, or none that may be remembered:
//   - of slots held at the same time, which any caller may release;
//   - of a window that never ends, which only an operator can change;
//   - of a cost that can never pass, which no time ends, except where longest is untilEnd and its window is overdrawn;
//   - of a look behind a penalty that a take would start.
func rejectionOf(op *backend.Op, at, longest engine.Micros) *rejection {
	d := &op.Decision
	cost := rejectedCost(op, longest)
	if cost == 0 || d.RetryAfter <= 0 || d.ResetAfter == engine.Never {
		return nil
	}
	retry := d.RetryAfter
	if retry == engine.Never { // the window is overdrawn, which rejects lower costs too until it ends
		retry = d.ResetAfter
	}
	span := min(minusDrift(micros(retry)), longest)
	counts := len(op.Limits) == 1 && op.Limits[0].CountRefused
	if op.Penalty != nil && (op.Penalty.On == engine.OnExceeded || counts && d.Penalty > 0) {
		span = min(span, minusDrift(micros(d.Penalty))) // a rejection after that starts another penalty, or counts again
	}
	if span <= 0 {
		return nil
	}
	r := &rejection{
		limits: slices.Clone(op.Limits), rejectsTakes: true, rejectsProbes: true,
		cost: cost, at: at, until: at + span, decision: *d,
	}
	if span == longest {
		r.renewed = make(chan struct{})
	}
	if op.Penalty != nil {
		r.penalty = new(*op.Penalty)
	}
	left := d.Left - min(d.Left, d.Admitted*cost) // as the first rejected one of several found it
	if l := &op.Limits[0]; counts {
		// A window that rejected hits have taken above its limit rejects everything until it ends, whether more are
		// counted or not. One exactly at its limit still admits a look with a cost of 0.
		over := d.Penalty > 0 || op.Mode == backend.Take || op.Take.Cost == 0
		r.rejectsTakes = l.Algorithm == engine.FixedWindow && l.Align == engine.AlignClock && over && !l.LateCharge
		r.rejectsProbes = l.Algorithm != engine.FixedWindow || op.Take.Cost == 0 || op.Mode == backend.Take && d.Penalty == 0
		if spends(op) && l.Algorithm == engine.FixedWindow {
			left = 0
		}
	}
	r.decision.Admitted, r.decision.Left, r.decision.Wait, r.decision.Renewed, r.decision.RetryAfter = 0, left, 0, 0, retry
	return r
}

// rejectedCost is the least cost that op's answer rejects for the time being, 0 if it rejects none.
func rejectedCost(op *backend.Op, longest engine.Micros) uint64 {
	cost := max(op.Take.Cost, 1)
	switch {
	case op.Err != nil || op.Decision.Admitted >= op.Take.Count:
		return 0
	case spends(op):
	case op.Mode == backend.Peek && startsLow(op.Limits): // it has not started the bucket, and the caller that takes does
		return 0
	case (op.Mode == backend.Take || op.Mode == backend.Peek) && op.Decision.Admitted == 0: // what a look admits is not spent, so the next look is admitted too
	default:
		return 0
	}
	switch {
	case longest == untilEnd && overdrawn(op):
		return 1
	case passable(op.Limits, cost):
		return cost
	default:
		return 0
	}
}

// startsLow reports whether one of l is a bucket that starts with less than its burst when it is first asked.
func startsLow(l engine.Limits) bool {
	return slices.ContainsFunc(l, func(l engine.Limit) bool { return engine.ParamInitial.TakenBy(l.Algorithm) && l.Initial < l.Burst })
}

// untilEnd is [UntilEnd].
const untilEnd = engine.Micros(UntilEnd / time.Microsecond)

// overdrawn reports whether op, which was rejected, has left a window that rejects everything until it ends.
func overdrawn(op *backend.Op) bool {
	if !spends(op) || op.Penalty != nil || len(op.Limits) != 1 {
		return false
	}
	l := &op.Limits[0]
	return l.Algorithm == engine.FixedWindow && l.Align == engine.AlignClock && l.CountRefused
}

// minusDrift shortens a span of the store's clock so that it ends in time by a local clock that may lose 200 µs per
// second.
func minusDrift(span engine.Micros) engine.Micros { return span - (span+drift-1)/drift }

// plusDrift lengthens a span of the store's clock so that it has ended by a local clock that may gain 200 µs per second.
func plusDrift(span engine.Micros) engine.Micros { return span + (span+drift-1)/drift }

// drift is one part in 5,000.
const drift = 5000

// passable reports whether all limits would admit cost at some time, and a rejection by them holds until then.
func passable(limits engine.Limits, cost uint64) bool {
	for i := range limits {
		if l := &limits[i]; !l.Algorithm.Remembered() || cost > l.MaxCost() {
			return false
		}
	}
	return true
}

// live reports whether r holds at now. If the clock was set back to before r was made, it does not.
func (r *rejection) live(now engine.Micros) bool { return r.at <= now && now < r.until }

// sameRule reports whether r was made by the same rule as op's.
func (r *rejection) sameRule(op *backend.Op) bool {
	if (r.penalty == nil) != (op.Penalty == nil) || r.penalty != nil && *r.penalty != *op.Penalty {
		return false
	}
	return slices.EqualFunc(r.limits, op.Limits, engine.Limit.Equal)
}

// rejects reports whether r is the answer to op, which has the same rule.
func (r *rejection) rejects(op *backend.Op) bool {
	if cost := max(op.Take.Cost, 1); op.Take.Count == 0 || cost != r.cost && !r.times(cost) {
		return false
	}
	if op.Take.Cost == 0 { // a look, whatever the mode
		return r.rejectsProbes
	}
	return op.Mode == backend.Peek || r.rejectsTakes
}

// times reports whether r knows the times of a rejection of another cost too: that of a greater one, for which a fixed window
// has to end as well, or one that can never pass.
func (r *rejection) times(cost uint64) bool {
	if cost < r.cost || len(r.limits) != 1 {
		return false
	}
	return r.penalty == nil && r.limits[0].Algorithm == engine.FixedWindow || !passable(r.limits, cost)
}

// delays reports whether op, which the store has answered, has spent hits that make others wait longer. The end of a fixed
// window does not move.
func delays(op *backend.Op) bool {
	l := &op.Limits[0]
	return spends(op) && (op.Decision.Admitted > 0 || l.CountRefused && l.Algorithm != engine.FixedWindow)
}

// decide returns the decision for op at now. Times count down from before the store was asked, so that they end no
// later than the store's. Left is what the cost that was rejected found, and Strictest, to which all times refer, is the
// limit of a list that was the strictest then.
func (r *rejection) decide(op *backend.Op, now engine.Micros) engine.Decision {
	d := r.decision
	gone := time.Duration(now-r.at) * time.Microsecond
	d.ResetAfter = max(d.ResetAfter-gone, 0)
	if d.ResetAfter == 0 {
		d.Window = 0 // the window has ended; it is a penalty that still rejects
	}
	d.RetryAfter = max(d.RetryAfter-gone, 0)
	d.Penalty = max(d.Penalty-gone, 0)
	if !passable(r.limits, max(op.Take.Cost, 1)) {
		d.RetryAfter = engine.Never
	}
	return d
}
