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
	penalty       *engine.Penalty // a copy; nil if there is none
	rejectsTakes  bool            // it answers takes too, which are then not counted
	rejectsProbes bool            // it answers checks of cost 0 too
	cost          uint64
	at            engine.Micros // time before the store was asked
	until         engine.Micros // time until which it is remembered
	renewed       chan struct{} // closed when the store has been asked again; nil unless it will still reject at until
	decision      engine.Decision
}

// rejectionOf returns the rejection in op after the store's answer. The store was asked at the time at or later. It returns nil if op was
// not rejected, or if the rejection must not be remembered:
//   - on a concurrency limit, whose slots any caller may release;
//   - on a window that never ends, which only an operator can change;
//   - of a cost that can never be admitted, which has no end, unless longest is untilEnd and the window is overdrawn;
//   - of a check behind a penalty that a take would start.
func rejectionOf(op *backend.Op, at, longest engine.Micros) *rejection {
	d := &op.Decision
	cost := rejectedCost(op, longest)
	if cost == 0 || d.RetryAfter <= 0 || d.ResetAfter == engine.Never {
		return nil
	}
	retry := d.RetryAfter
	if retry == engine.Never { // the window is overdrawn, and rejects lower costs too until it ends
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
	left := d.Left - min(d.Left, d.Admitted*cost) // the hits left for the first rejected take
	if l := &op.Limits[0]; counts {
		// A window that rejected hits have filled beyond its limit rejects everything until it ends, whether more hits are counted or
		// not. A window exactly at its limit admits a check with a cost of 0.
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

// rejectedCost returns the smallest cost that op's answer rejects for now, or 0 if it rejects none.
func rejectedCost(op *backend.Op, longest engine.Micros) uint64 {
	cost := max(op.Take.Cost, 1)
	switch {
	case op.Err != nil || op.Decision.Admitted >= op.Take.Count:
		return 0
	case spends(op):
	case op.Mode == backend.Peek && startsLow(op.Limits): // it has not started the bucket; a take will
		return 0
	case (op.Mode == backend.Take || op.Mode == backend.Peek) && op.Decision.Admitted == 0: // a check consumes nothing, so an admitted one is repeatable
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

// startsLow reports whether one of l is a bucket that starts below its burst.
func startsLow(l engine.Limits) bool {
	return slices.ContainsFunc(l, func(l engine.Limit) bool { return engine.ParamInitial.TakenBy(l.Algorithm) && l.Initial < l.Burst })
}

// untilEnd is [UntilEnd] in microseconds.
const untilEnd = engine.Micros(UntilEnd / time.Microsecond)

// overdrawn reports whether op, which was rejected, leaves a window that rejects everything until it ends.
func overdrawn(op *backend.Op) bool {
	if !spends(op) || op.Penalty != nil || len(op.Limits) != 1 {
		return false
	}
	l := &op.Limits[0]
	return l.Algorithm == engine.FixedWindow && l.Align == engine.AlignClock && l.CountRefused
}

// minusDrift shortens a span of the store's clock so that it does not end later on a local clock that may lose 200 µs per second.
func minusDrift(span engine.Micros) engine.Micros { return span - (span+drift-1)/drift }

// plusDrift lengthens a span of the store's clock so that it does not end earlier on a local clock that may gain 200 µs per second.
func plusDrift(span engine.Micros) engine.Micros { return span + (span+drift-1)/drift }

// drift is the reciprocal of the maximum drift of clocks, 200 ppm.
const drift = 5000

// passable reports whether every limit would eventually admit cost, and its rejections are valid until then.
func passable(limits engine.Limits, cost uint64) bool {
	for i := range limits {
		if l := &limits[i]; !l.Algorithm.Remembered() || cost > l.MaxCost() {
			return false
		}
	}
	return true
}

// live reports whether r is valid at now. It is not if the clock was set back to before r.
func (r *rejection) live(now engine.Micros) bool { return r.at <= now && now < r.until }

// sameRule reports whether r comes from the same rule as op.
func (r *rejection) sameRule(op *backend.Op) bool {
	if (r.penalty == nil) != (op.Penalty == nil) || r.penalty != nil && *r.penalty != *op.Penalty {
		return false
	}
	return slices.EqualFunc(r.limits, op.Limits, engine.Limit.Equal)
}

// rejects reports whether r answers op, which has the same rule.
func (r *rejection) rejects(op *backend.Op) bool {
	if cost := max(op.Take.Cost, 1); op.Take.Count == 0 || cost != r.cost && !r.times(cost) {
		return false
	}
	if op.Take.Cost == 0 { // a check, in any mode
		return r.rejectsProbes
	}
	return op.Mode == backend.Peek || r.rejectsTakes
}

// times reports whether the times of r also apply to another cost: a larger one on a fixed window, which also waits for its end, or one
// that can never be admitted.
func (r *rejection) times(cost uint64) bool {
	if cost < r.cost || len(r.limits) != 1 {
		return false
	}
	return r.penalty == nil && r.limits[0].Algorithm == engine.FixedWindow || !passable(r.limits, cost)
}

// delays reports whether op, after the store's answer, consumed hits that prolong the wait of other ops. The end of a fixed window does
// not move.
func delays(op *backend.Op) bool {
	l := &op.Limits[0]
	return spends(op) && (op.Decision.Admitted > 0 || l.CountRefused && l.Algorithm != engine.FixedWindow)
}

// decide returns the decision for op at now. Times count down from before the store was asked, so they end no later than the store's.
// Left is the number that the rejected cost found. Strictest, the limit that all times refer to, is the strictest limit of a list at that
// time.
func (r *rejection) decide(op *backend.Op, now engine.Micros) engine.Decision {
	d := r.decision
	gone := time.Duration(now-r.at) * time.Microsecond
	d.ResetAfter = max(d.ResetAfter-gone, 0)
	if d.ResetAfter == 0 {
		d.Window = 0 // the window has ended; a penalty still rejects
	}
	d.RetryAfter = max(d.RetryAfter-gone, 0)
	d.Penalty = max(d.Penalty-gone, 0)
	if !passable(r.limits, max(op.Take.Cost, 1)) {
		d.RetryAfter = engine.Never
	}
	return d
}
