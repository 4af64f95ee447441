package limiter

import (
	"context"
	"fmt"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// charge lets the backend decide the operations of p: all at once or, if descriptors are charged together, with a look
// first.
func (l *Limiter) charge(ctx context.Context, d *descriptors.Domain, p *Scratch) error {
	if len(p.ops) == 0 {
		return nil
	}
	if len(p.ops) > 1 && (d.ChargeTogether || l.config.StopWhenOver) {
		return l.chargeTogether(ctx, p)
	}
	return l.ask(ctx, p, p.ops, nil)
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
	for i := range ops {
		if err := ops[i].Err; err != nil {
			return storeError(err)
		}
	}
	return nil
}

// chargeTogether looks at each descriptor first. If the looks add up to a verdict of over, only the descriptors that
// would refuse take, so that refused hits are counted where they count; otherwise all take, and if one is refused after
// all, the others are given back. Descriptors that give hits back do so in any case: a slot that is released must not
// stay taken. Late charges are counted in any case too, because their requests have already run.
//
// STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT does the same, except that any refusal, even in shadow or quota mode, has the
// effect of a verdict of over, that nothing is given back, and that a descriptor whose look was answered from the
// backend's memory takes nothing: that answer stands.
func (l *Limiter) chargeTogether(ctx context.Context, p *Scratch) error {
	if l.config.StopWhenOver && l.config.LocalCache {
		if stopped, err := l.stopAtKnown(ctx, p); stopped || err != nil {
			return err
		}
	}
	p.pick(func(t *part) bool { return !t.negative })
	for k := range p.batch {
		if op := &p.batch[k]; op.Take.Cost > 0 { // who asks for nothing does not look twice
			op.Mode = backend.Look
		}
	}
	if err := l.applyBatch(ctx, p); err != nil {
		return err
	}
	if l.stops(p) {
		return l.chargeRefused(ctx, p)
	}
	p.pick(func(t *part) bool { return t.negative || t.takes() || l.config.StopWhenOver && p.repeats(t) })
	if err := l.applyBatch(ctx, p); err != nil {
		return err
	}
	if !l.config.StopWhenOver && l.stops(p) {
		l.giveBack(ctx, p)
	}
	return nil
}

// stopAtKnown does what the reference, with a local cache, does before it asks its store: if a descriptor is already
// over its limit, and not only because of this request's hits, nothing is spent at all, and the other descriptors get
// their current state. Here this does not depend on what a cache happens to hold.
func (l *Limiter) stopAtKnown(ctx context.Context, p *Scratch) (stopped bool, err error) {
	p.pick(func(t *part) bool { return !t.negative })
	for k := range p.batch {
		p.batch[k].Mode, p.batch[k].Take.Cost = backend.Look, 0
	}
	if err := l.applyBatch(ctx, p); err != nil {
		return false, err
	}
	if !l.stops(p) {
		return false, nil
	}
	for i := range p.parts {
		t := &p.parts[i]
		t.unspent = t.op >= 0 && !t.due() && !p.refused(t)
	}
	p.pick((*part).due)
	return true, l.applyBatch(ctx, p)
}

// stops reports whether the decisions on p's operations keep the request from being charged.
func (l *Limiter) stops(p *Scratch) bool {
	if !l.config.StopWhenOver {
		return l.over(p) && !l.config.Shadow
	}
	for i := range p.parts {
		if p.refused(&p.parts[i]) {
			return true
		}
	}
	return false
}

// chargeRefused takes for the descriptors that a look refused. They stay refused even if their take is admitted because
// time has moved on: the others are no longer charged.
func (l *Limiter) chargeRefused(ctx context.Context, p *Scratch) error {
	for i := range p.parts {
		t := &p.parts[i]
		t.unspent = t.op >= 0 && !t.due() && !p.refused(t)
	}
	p.pick(func(t *part) bool {
		switch {
		case t.due():
			return true
		case l.config.StopWhenOver && p.ops[t.op].Remembered:
			return false
		}
		return p.refused(t) && t.hits > 0 || l.config.StopWhenOver && p.repeats(t)
	})
	for k, i := range p.picked {
		if p.parts[p.owners[i]].unspent {
			p.batch[k].Mode, p.batch[k].Take.Cost = backend.Look, 0
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
			p.batch[n], p.picked[n] = giveBackOf(took), i
			n++
			continue
		}
		p.ops[i].Decision, p.ops[i].Remembered, p.ops[i].Leased = took.Decision, took.Remembered, took.Leased
	}
	if n > 0 && !l.config.StopWhenOver {
		l.applyBack(ctx, p, n)
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

// giveBack gives back what was taken, without changing any decision.
func (l *Limiter) giveBack(ctx context.Context, p *Scratch) {
	n := 0
	for i := range p.parts {
		t := &p.parts[i]
		if t.op < 0 || !t.takes() || t.due() || p.refused(t) {
			continue
		}
		t.unspent = true
		p.batch[n], p.picked[n] = giveBackOf(&p.ops[t.op]), t.op // all takes are in the batch, so there is room
		n++
	}
	l.applyBack(ctx, p, n)
}

// giveBackOf returns the operation that undoes a take, in the window it was spent in.
func giveBackOf(took *backend.Op) backend.Op {
	op := *took
	op.Mode = backend.Give
	if took.Decision.Reservation == engine.ReservationOpen {
		op.Mode, op.Take.Cost = backend.Settle, 0
	}
	op.Take.Window = took.Decision.Window
	op.Take.Cost -= min(took.Decision.Renewed, op.Take.Cost) // a holder keeps what it held before
	op.Decision, op.Err, op.Remembered = engine.Decision{}, nil, false
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

// applyBatch asks the backend for the batch and copies its decisions back. What is asked about these counters from then
// on is asked again.
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
		p.ops[i].Decision, p.ops[i].Remembered, p.ops[i].Again = p.batch[k].Decision, p.batch[k].Remembered, true
		p.ops[i].Leased = p.batch[k].Leased
	}
	return nil
}
