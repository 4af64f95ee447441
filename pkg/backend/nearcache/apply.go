package nearcache

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// part is one of the two parts of the near cache: remembered rejections or leased hits.
type part interface {
	// answer decides op, or returns false and prepares p for asking the store.
	answer(op *backend.Op, p *pending, now engine.Micros) bool
	// learn updates the part from the store's answer to op. The store was asked at the time asked or later.
	learn(op *backend.Op, p *pending, asked, now engine.Micros)
}

var (
	_ part = (*rejections)(nil)
	_ part = (*leases)(nil)
)

// pending is the state of an op that the store decides.
type pending struct {
	index int // of the op in the call
	hash  uint64

	// Of rejections.

	use   rejectionUse // set by leases
	epoch uint32       // of the key

	// Of leases.

	lesson  lesson
	refill  chan struct{} // closed at the end of the refill in progress, or nil
	refills uint32        // number of the key's last refill, if lesson is withoutHeld
	refunds []refund      // hits to refund in the same call, before the op
}

// rejectionUse is whether a remembered rejection may answer an op.
type rejectionUse uint8

const (
	rejectionAnswers rejectionUse = iota
	rejectionSkipped // it must not answer, because hits of the key are leased
	rejectionEnds    // it ends, because hits of the key are refunded or its rule has changed
)

// scratch is the memory of a call of Apply. It is reused.
type scratch struct {
	asked []pending    // ops for the store, in order
	rest  []backend.Op // these ops and refunds, unless they are the caller's ops
}

// Apply decides every op. It asks the store about the ops that it cannot decide, in one call. Ops that share a key are decided
// in order.
func (b *Backend) Apply(ctx context.Context, ops []backend.Op) { b.apply(ctx, b.store, ops) }

func (b *Backend) apply(ctx context.Context, store backend.Backend, ops []backend.Op) {
	if b.rejections == nil && b.leases == nil {
		store.Apply(ctx, ops)
		return
	}
	c := b.calls.Get().(*scratch)
	now := b.now()
	for i := range ops {
		ops[i].Origin = backend.FromStore
		c.asked = append(c.asked, pending{index: i, hash: b.hash(&ops[i].Key)})
		if last := len(c.asked) - 1; b.answer(&ops[i], &c.asked[last], now) { //nolint:contextcheck // a refill does not belong to this caller alone
			c.asked = c.asked[:last]
		}
	}
	if len(c.asked) > 0 {
		b.ask(ctx, store, ops, c, now)
	}
	clear(c.rest) // drops references to the caller's memory
	c.rest, c.asked = c.rest[:0], c.asked[:0]
	b.calls.Put(c)
}

// answer implements [part] for both parts.
func (b *Backend) answer(op *backend.Op, p *pending, now engine.Micros) bool {
	if b.leases != nil && b.leases.answer(op, p, now) {
		if b.rejections != nil {
			b.rejections.countMiss(op, p)
		}
		return true
	}
	return b.rejections != nil && b.rejections.answer(op, p, now)
}

// learn implements [part] for both parts.
func (b *Backend) learn(op *backend.Op, p *pending, asked, now engine.Micros) {
	if b.rejections != nil {
		b.rejections.learn(op, p, asked, now)
	}
	if b.leases != nil {
		b.leases.learn(op, p, asked, now)
	}
}

// ask asks the store about the ops of c.asked, and learns from its answers.
func (b *Backend) ask(ctx context.Context, store backend.Backend, ops []backend.Op, c *scratch, at engine.Micros) {
	asked, same := ops, len(c.asked) == len(ops)
	for i := range c.asked {
		same = same && len(c.asked[i].refunds) == 0
	}
	if !same {
		for i := range c.asked {
			p := &c.asked[i]
			for j := range p.refunds {
				c.rest = append(c.rest, p.refunds[j].op())
			}
			c.rest = append(c.rest, ops[p.index])
		}
		asked = c.rest
	}
	store.Apply(ctx, asked)
	now := at
	if b.leases != nil { // rejections do not need it
		now = b.now()
	}
	for i := range c.asked {
		p := &c.asked[i]
		for j := range p.refunds {
			b.leases.refunds.sent(&p.refunds[j], &asked[j])
		}
		asked = asked[len(p.refunds):]
		if p.refill != nil && asked[0].Err == nil && awaitRefill(ctx, p.refill) {
			now = b.now()
		}
		b.learn(&asked[0], p, at, now)
		if !same {
			ops[p.index].Decision, ops[p.index].Err = asked[0].Decision, asked[0].Err
		}
		asked = asked[1:]
	}
}

// refillGrace is the longest that an answer of the store waits for a refill that began before it. It also waits for no more than
// half of its caller's remaining time.
const refillGrace = 5 * time.Millisecond

// awaitRefill waits for a refill that may have debited hits before the store's answer. Without it, the number of hits left is
// unknown. It returns false at once if the refill has ended.
func awaitRefill(ctx context.Context, refill chan struct{}) bool {
	select {
	case <-refill:
		return false
	default:
	}
	grace := refillGrace
	if deadline, ok := ctx.Deadline(); ok {
		grace = min(grace, time.Until(deadline)/2)
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-refill:
	case <-timer.C:
	case <-ctx.Done():
	}
	return true
}

// observed is the store that leases use for refills and refunds. Rejections learn from its answers.
type observed struct {
	backend.Backend

	near *Backend
}

// Apply implements [backend.Backend].
func (o observed) Apply(ctx context.Context, ops []backend.Op) {
	r, at := o.near.rejections, o.near.now()
	asked := make([]pending, len(ops))
	for i := range ops {
		asked[i].hash = o.near.hash(&ops[i].Key)
		r.ask(&ops[i], &asked[i], true)
	}
	o.Backend.Apply(ctx, ops)
	for i := range ops {
		r.learn(&ops[i], &asked[i], at, at)
	}
}
