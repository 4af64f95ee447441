package limiter

import (
	"context"
	"fmt"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// calls holds the backend calls of a request, which run one after the other.
type calls struct {
	late   bool         // no time is left for calls: fallbacks decide
	batch  []backend.Op // the operations of the current call
	picked []int        // their indices in the plan
	local  []backend.Op // operations that Config.Local decides because the backend failed
	failed []int        // their indices in the failed call
}

// spent records whether the hits of an admitted descriptor were charged, refunded or released.
type spent uint8

const (
	charged   spent = iota // the hits are consumed
	uncharged              // not charged because of other descriptors, or refunded
	released               // reserved, and settled immediately because the request gets no reservation
)

// charge sends the operations to the backend: in one call or, if descriptors are charged together, after a check. A blocked request is
// rejected in any case; the backend gets only its refunds, if there is time.
func (l *Limiter) charge(ctx context.Context, r *Request, p *Scratch) (err error) {
	p.late = r.OutOfTime
	switch {
	case len(p.ops) == 0:
		return nil
	case p.blocked && r.OutOfTime:
		shed(p.ops) // otherwise their zero decisions would look like the backend's
		err = ErrOverload
	case len(p.ops) > 1 && (p.domain.ChargeTogether || l.config.StopWhenOver):
		err = l.chargeTogether(ctx, p)
	default:
		err = l.ask(ctx, p, p.ops, nil)
	}
	p.completeReserveBy()
	if p.blocked {
		if err != nil {
			l.counts.refundErrors.Add(1)
		}
		return nil
	}
	if err != nil || p.reserving && !l.config.Shadow && l.over(p) {
		l.release(ctx, p)
	}
	return err
}

// apply sends ops to the backend, or sheds them if late is set. It returns the error of the first failed operation; the others are
// decided.
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

// inquire sends ops to the operators' backend.
func (l *Limiter) inquire(ctx context.Context, ops []backend.Op) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrBackend, err)
	}
	l.config.Operators.Apply(ctx, ops)
	return firstError(ops)
}

// firstError returns the error of the first failed operation, or nil.
func firstError(ops []backend.Op) error {
	for i := range ops {
		if err := ops[i].Err; err != nil {
			return storeError(err)
		}
	}
	return nil
}

// chargeTogether checks each descriptor first. If the checks put the verdict over the limit, only the rejecting descriptors take hits, so
// that rejected hits still count against their limits. Otherwise all descriptors take; if one is then rejected, the others are refunded.
// Refunds and late charges happen in any case: a released slot must not stay taken, and the request of a late charge has already run.
//
// STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT does the same with three exceptions. Any rejection, even in shadow or quota mode, acts like a
// verdict over the limit. Nothing is refunded. A descriptor whose check was answered by a remembered rejection takes nothing.
func (l *Limiter) chargeTogether(ctx context.Context, p *Scratch) error {
	if l.config.StopWhenOver && l.config.LocalCache {
		if stopped, err := l.stopIfAlreadyOver(ctx, p); stopped || err != nil {
			return err
		}
	}
	p.pick(func(t *part) bool { return !t.Negative })
	for k := range p.batch {
		if op := &p.batch[k]; op.Take.Cost > 0 { // a take of zero hits is already a check
			op.Mode = backend.Peek
		}
	}
	if err := l.applyBatch(ctx, p); err != nil {
		return err
	}
	if l.stops(p) {
		return l.chargeRejected(ctx, p)
	}
	p.pick(func(t *part) bool { return t.due() || t.takes() || l.config.StopWhenOver && p.repeats(t) })
	if err := l.applyBatch(ctx, p); err != nil {
		return err
	}
	if !l.config.StopWhenOver && l.stops(p) {
		l.refund(ctx, p)
	}
	return nil
}

// stopIfAlreadyOver mirrors the reference, which consults its local cache before its store: if a descriptor was over its limit before this
// request's hits, the request spends nothing and the other descriptors report their current state. Unlike the reference, the result does
// not depend on the content of a cache.
func (l *Limiter) stopIfAlreadyOver(ctx context.Context, p *Scratch) (stopped bool, err error) {
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

// chargeRejected takes hits for the descriptors that a check rejected. They stay rejected even if the take is now admitted because time
// has passed: the others are no longer charged.
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

// repeats reports whether a descriptor before t has the same counter. The reference reads such a counter in the order of the request,
// even for a descriptor that takes nothing, so t sees the counter after those before it.
func (p *Scratch) repeats(t *part) bool {
	for i := range t.op {
		if p.ops[i].Key == p.ops[t.op].Key {
			return true
		}
	}
	return false
}

// refund refunds the takes of admitted descriptors. It changes no decision.
func (l *Limiter) refund(ctx context.Context, p *Scratch) {
	n := 0
	for i := range p.parts {
		t := &p.parts[i]
		if t.op < 0 || !t.takes() || t.due() || p.rejected(t) {
			continue
		}
		t.spent = uncharged
		p.batch[n], p.picked[n] = refundOf(&p.ops[t.op]), t.op // the batch holds all takes, so there is room
		n++
	}
	l.applyRefunds(ctx, p, n)
}

// refundOf returns the operation that undoes a take, in the window of the take.
func refundOf(took *backend.Op) backend.Op {
	op := *took
	op.Mode = backend.Refund
	switch took.Decision.Reservation {
	case engine.ReservationOpen:
		op.Mode, op.Take.Cost = backend.Settle, 0
	case engine.ReservationSettled, engine.ReservationRepeated: // nothing was consumed
		op.Take.Cost = 0
	case engine.ReservationNone, engine.ReservationFull, engine.ReservationUnknown, engine.ReservationLate, engine.ReservationCharged:
	}
	op.Take.Window = took.Decision.Window
	op.Take.Cost -= min(took.Decision.Renewed, op.Take.Cost) // a holder keeps the slots it held before
	op.Decision, op.Err, op.Origin = engine.Decision{}, nil, backend.FromStore
	return op
}

// pick copies the operations of the parts that satisfy f to the batch.
func (p *Scratch) pick(f func(*part) bool) {
	p.batch, p.picked = p.batch[:0], p.picked[:0]
	for i := range p.parts {
		if t := &p.parts[i]; t.op >= 0 && f(t) {
			p.batch = append(p.batch, p.ops[t.op])
			p.picked = append(p.picked, t.op)
		}
	}
}

// applyBatch sends the batch to the backend and copies the decisions back.
func (l *Limiter) applyBatch(ctx context.Context, p *Scratch) error {
	if len(p.batch) == 0 {
		return nil
	}
	if err := l.ask(ctx, p, p.batch, p.picked); err != nil {
		for k, i := range p.picked { // release needs the reservations that were opened
			p.ops[i].Decision, p.ops[i].Err = p.batch[k].Decision, p.batch[k].Err
		}
		return err
	}
	for k, i := range p.picked {
		p.ops[i].Decision, p.ops[i].Origin, p.ops[i].Again = p.batch[k].Decision, p.batch[k].Origin, true
	}
	p.completeReserveBy()
	return nil
}
