package limiter

import (
	"context"
	"fmt"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// calls are the calls to the backend about a request, one after the other.
type calls struct {
	late   bool         // there is no time for them: fallbacks decide
	batch  []backend.Op // the operations of one call
	picked []int        // their indices in the plan
	local  []backend.Op // those that this process decides because the backend failed
	failed []int        // their indices in the call that failed
}

// spent says what became of the hits of a descriptor that its limits admit.
type spent uint8

const (
	charged   spent = iota // they are spent
	uncharged              // they are not, because of other descriptors, or are refunded
	released               // they were reserved, and the reservation is settled: the request was rejected
)

// charge has the backend decide the operations: in one call or, if descriptors are charged together, with a check first. A request
// that a control blocks is rejected in any case; the backend is only asked for its refunds, if there is time.
func (l *Limiter) charge(ctx context.Context, r *Request, p *Scratch) (err error) {
	p.late = r.Late
	switch {
	case len(p.ops) == 0:
		return nil
	case p.blocked && r.Late:
		shed(p.ops) // else their decisions would look like those of the backend
		err = ErrOverload
	case len(p.ops) > 1 && (p.domain.ChargeTogether || l.config.StopWhenOver):
		err = l.chargeTogether(ctx, p)
	default:
		err = l.ask(ctx, p, p.ops, nil)
	}
	if p.blocked {
		if err != nil {
			l.counts.refundErrors.Add(1)
		}
		return nil
	}
	if err != nil || p.name != (engine.ReservationID{}) && !l.config.Shadow && l.over(p) {
		l.release(ctx, p)
	}
	return err
}

// apply asks the backend, unless there is no time for that. It returns the error of the first operation that failed; the
// others are decided.
func (l *Limiter) apply(ctx context.Context, ops []backend.Op, late bool) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrBackend, err)
	}
	if late {
		shed(ops)
		return ErrOverload
	}
	l.backend.Apply(ctx, ops)
	return firstError(ops)
}

// inquire asks the backend for an operator.
func (l *Limiter) inquire(ctx context.Context, ops []backend.Op) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrBackend, err)
	}
	l.config.Operators.Apply(ctx, ops)
	return firstError(ops)
}

// firstError returns the error of the first operation that failed.
func firstError(ops []backend.Op) error {
	for i := range ops {
		if err := ops[i].Err; err != nil {
			return storeError(err)
		}
	}
	return nil
}

// chargeTogether checks each descriptor first. If the checks make the verdict over the limit, only the descriptors that would
// reject take hits, so that rejected hits are counted where they count. Otherwise all take; if one is rejected after all, the
// others are refunded. A descriptor that refunds does so in any case: a slot that is released must not stay taken. Late charges are
// counted in any case too, because their requests have already run.
//
// STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT does the same with three exceptions. Any rejection, even in shadow or quota mode, has the
// effect of a verdict over the limit. Nothing is refunded. A descriptor whose check was answered from the backend's memory takes
// nothing: that answer stands.
func (l *Limiter) chargeTogether(ctx context.Context, p *Scratch) error {
	if l.config.StopWhenOver && l.config.LocalCache {
		if stopped, err := l.stopAtKnown(ctx, p); stopped || err != nil {
			return err
		}
	}
	p.pick(func(t *part) bool { return !t.Negative })
	for k := range p.batch {
		if op := &p.batch[k]; op.Take.Cost > 0 { // what asks for nothing is not checked twice
			op.Mode = backend.Peek
		}
	}
	if err := l.applyBatch(ctx, p); err != nil {
		return err
	}
	if l.stops(p) {
		return l.chargeRejected(ctx, p)
	}
	p.pick(func(t *part) bool { return t.Negative || t.takes() || l.config.StopWhenOver && p.repeats(t) })
	if err := l.applyBatch(ctx, p); err != nil {
		return err
	}
	if !l.config.StopWhenOver && l.stops(p) {
		l.refund(ctx, p)
	}
	return nil
}

// stopAtKnown does what the reference, with a local cache, does before it asks its store: if a descriptor is already
// over its limit, and not only because of this request's hits, nothing is spent at all, and the other descriptors get
// their current state. Here this does not depend on what a cache happens to hold.
func (l *Limiter) stopAtKnown(ctx context.Context, p *Scratch) (stopped bool, err error) {
	p.pick(func(t *part) bool { return !t.Negative })
	for k := range p.batch {
		p.batch[k].Mode, p.batch[k].Take.Cost = backend.Peek, 0
	}
	if err := l.applyBatch(ctx, p); err != nil {
		return false, err
	}
	if !l.stops(p) {
		return false, nil
	}
	p.spare()
	p.pick((*part).due)
	return true, l.applyBatch(ctx, p)
}

// spare marks the descriptors that are not charged because another one rejects the request.
func (p *Scratch) spare() {
	for i := range p.parts {
		if t := &p.parts[i]; t.op >= 0 && !t.due() && !p.rejected(t) {
			t.spent = uncharged
		}
	}
}

// stops reports whether the decisions on p's operations keep the request from being charged.
func (l *Limiter) stops(p *Scratch) bool {
	if !l.config.StopWhenOver {
		return l.over(p) && !l.config.Shadow
	}
	for i := range p.parts {
		if p.rejected(&p.parts[i]) {
			return true
		}
	}
	return false
}

// chargeRejected takes hits for the descriptors that a check rejected. They stay rejected even if their take is admitted because
// time has moved on: the others are no longer charged.
func (l *Limiter) chargeRejected(ctx context.Context, p *Scratch) error {
	p.spare()
	p.pick(func(t *part) bool {
		switch {
		case t.due():
			return true
		case l.config.StopWhenOver && p.ops[t.op].Origin == backend.FromRejection:
			return false
		}
		return p.rejected(t) && t.Hits > 0 || l.config.StopWhenOver && p.repeats(t)
	})
	for k, i := range p.picked {
		if p.parts[p.owners[i]].spent != charged {
			p.batch[k].Mode, p.batch[k].Take.Cost = backend.Peek, 0
		}
	}
	if len(p.batch) == 0 {
		return nil
	}
	if err := l.ask(ctx, p, p.batch, p.picked); err != nil {
		return err
	}
	n := 0
	for k, i := range p.picked {
		took := &p.batch[k]
		if took.Mode == backend.Take && took.Decision.Admitted > 0 && !p.parts[p.owners[i]].due() {
			p.batch[n], p.picked[n] = refundOf(took), i
			n++
			continue
		}
		p.ops[i].Decision, p.ops[i].Origin = took.Decision, took.Origin
	}
	if n > 0 && !l.config.StopWhenOver {
		l.applyRefunds(ctx, p, n)
	}
	return nil
}

// repeats reports whether a descriptor before t has the same counter. The reference asks for such a counter in the
// order of the request, even for a descriptor that takes nothing, so t sees what those before it left.
func (p *Scratch) repeats(t *part) bool {
	for i := range t.op {
		if p.ops[i].Key == p.ops[t.op].Key {
			return true
		}
	}
	return false
}

// refund refunds what was taken, without changing any decision.
func (l *Limiter) refund(ctx context.Context, p *Scratch) {
	n := 0
	for i := range p.parts {
		t := &p.parts[i]
		if t.op < 0 || !t.takes() || t.due() || p.rejected(t) {
			continue
		}
		t.spent = uncharged
		p.batch[n], p.picked[n] = refundOf(&p.ops[t.op]), t.op // all takes are in the batch, so there is room
		n++
	}
	l.applyRefunds(ctx, p, n)
}

// refundOf returns the operation that undoes a take, in the window it was spent in.
func refundOf(took *backend.Op) backend.Op {
	op := *took
	op.Mode = backend.Refund
	if took.Decision.Reservation == engine.ReservationOpen {
		op.Mode, op.Take.Cost = backend.Settle, 0
	}
	op.Take.Window = took.Decision.Window
	op.Take.Cost -= min(took.Decision.Renewed, op.Take.Cost) // a holder keeps what it held before
	op.Decision, op.Err, op.Origin = engine.Decision{}, nil, backend.FromStore
	return op
}

// pick copies the operations of the parts for which f returns true to the batch.
func (p *Scratch) pick(f func(*part) bool) {
	p.batch, p.picked = p.batch[:0], p.picked[:0]
	for i := range p.parts {
		if t := &p.parts[i]; t.op >= 0 && f(t) {
			p.batch = append(p.batch, p.ops[t.op])
			p.picked = append(p.picked, t.op)
		}
	}
}

// applyBatch asks the backend for the batch and copies its decisions back.
func (l *Limiter) applyBatch(ctx context.Context, p *Scratch) error {
	if len(p.batch) == 0 {
		return nil
	}
	if err := l.ask(ctx, p, p.batch, p.picked); err != nil {
		for k, i := range p.picked { // what was reserved has to be released
			p.ops[i].Decision, p.ops[i].Err = p.batch[k].Decision, p.batch[k].Err
		}
		return err
	}
	for k, i := range p.picked {
		p.ops[i].Decision, p.ops[i].Origin, p.ops[i].Again = p.batch[k].Decision, p.batch[k].Origin, true
	}
	return nil
}
