package limiter

import (
	"context"
	"fmt"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// charge lets the backend decide the operations of p: all at once, or, where descriptors are charged together, first
// with a look.
func (l *Limiter) charge(ctx context.Context, d *descriptors.Domain, p *scratch) error {
	if len(p.ops) == 0 {
		return nil
	}
	if len(p.ops) > 1 && (d.ChargeTogether || l.config.StopWhenOver) {
		return l.chargeTogether(ctx, p)
	}
	return l.ask(ctx, p, p.ops, nil)
}

// apply asks the backend. The error is that of the first operation that failed; the others are decided.
func (l *Limiter) apply(ctx context.Context, ops []backend.Op) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrBackend, err)
	}
	l.backend.Apply(ctx, ops)
	for i := range ops {
		if err := ops[i].Err; err != nil {
			return fmt.Errorf("%w: %w", ErrBackend, err)
		}
	}
	return nil
}

// chargeTogether looks first. If that look, each descriptor for itself, makes a verdict of over, only what refused takes, so
// that it counts where refused hits count; otherwise all take, and if one is refused after all, the others are given
// back. What gives hits back does so in any case: a slot that is released must not stay taken.
//
// STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT is the same with any refusal, also in shadow and quota mode, for a verdict, and
// gives nothing back; and where the backend remembered what the look was told, that is the answer, and nothing is taken.
func (l *Limiter) chargeTogether(ctx context.Context, p *scratch) error {
	if l.config.StopWhenOver && l.config.LocalCache {
		if stopped, err := l.stopAtKnown(ctx, p); stopped || err != nil {
			return err
		}
	}
	p.pick(func(t *part) bool { return !t.negative })
	for k := range p.batch {
		p.batch[k].Mode = backend.Look
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

// stopAtKnown does what the reference does with a local cache before it asks its store: where a descriptor is over its
// limit already, and not only because of this request's hits, nothing is spent at all, and the others are told how they
// stand. Whether that is so does not depend on what a cache happens to hold.
func (l *Limiter) stopAtKnown(ctx context.Context, p *scratch) (stopped bool, err error) {
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
		t.unspent = t.op >= 0 && !t.negative && !p.refused(t)
	}
	p.pick(func(t *part) bool { return t.negative })
	return true, l.applyBatch(ctx, p)
}

// stops reports whether what p's operations were told keeps the request from being charged.
func (l *Limiter) stops(p *scratch) bool {
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

// chargeRefused takes for what a look refused. What was refused stays refused, even if the take finds that time has moved
// on: the others are not charged any more.
func (l *Limiter) chargeRefused(ctx context.Context, p *scratch) error {
	for i := range p.parts {
		t := &p.parts[i]
		t.unspent = t.op >= 0 && !t.negative && !p.refused(t)
	}
	p.pick(func(t *part) bool {
		switch {
		case t.negative:
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
		if took.Mode == backend.Take && took.Decision.Admitted > 0 {
			p.batch[n], p.picked[n] = giveBackOf(took), i
			n++
			continue
		}
		p.ops[i].Decision, p.ops[i].Remembered = took.Decision, took.Remembered
	}
	if n > 0 && !l.config.StopWhenOver {
		l.applyBack(ctx, p, n)
	}
	return nil
}

// repeats reports whether a descriptor before t has the counter of t. The reference asks for such a counter in the
// order of the request, also for what takes nothing, so t is told what those before it left.
func (p *scratch) repeats(t *part) bool {
	for i := range t.op {
		if p.ops[i].Key == p.ops[t.op].Key {
			return true
		}
	}
	return false
}

// giveBack gives back what was taken, and leaves every decision as it was.
func (l *Limiter) giveBack(ctx context.Context, p *scratch) {
	n := 0
	for i := range p.parts {
		t := &p.parts[i]
		if t.op < 0 || !t.takes() || p.refused(t) {
			continue
		}
		t.unspent = true
		p.batch[n], p.picked[n] = giveBackOf(&p.ops[t.op]), t.op // all takes are in the batch, so there is room
		n++
	}
	l.applyBack(ctx, p, n)
}

// giveBackOf is the operation that undoes a take, in the window it was spent in.
func giveBackOf(took *backend.Op) backend.Op {
	op := *took
	op.Mode = backend.Give
	op.Take.Window = took.Decision.Window
	op.Take.Cost -= min(took.Decision.Renewed, op.Take.Cost) // a holder keeps what it held before
	op.Decision, op.Err, op.Remembered = engine.Decision{}, nil, false
	return op
}

// pick copies the operations of the parts that f chooses to the batch.
func (p *scratch) pick(f func(*part) bool) {
	p.batch, p.picked = p.batch[:0], p.picked[:0]
	for i := range p.parts {
		if t := &p.parts[i]; t.op >= 0 && f(t) {
			p.batch = append(p.batch, p.ops[t.op])
			p.picked = append(p.picked, t.op)
		}
	}
}

// applyBatch asks the backend for the batch and copies its decisions back.
func (l *Limiter) applyBatch(ctx context.Context, p *scratch) error {
	if len(p.batch) == 0 {
		return nil
	}
	if err := l.ask(ctx, p, p.batch, p.picked); err != nil {
		return err
	}
	for k, i := range p.picked {
		p.ops[i].Decision, p.ops[i].Remembered = p.batch[k].Decision, p.batch[k].Remembered
	}
	return nil
}
