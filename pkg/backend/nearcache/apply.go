package nearcache

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// verdict is the result of asking rejections or leases about an op.
type verdict uint8

const (
	askStore verdict = iota // the store decides
	decided
	later // answer again when pending.wait is closed
)

// pending is the state of an undecided op.
type pending struct {
	call  *call
	index int           // of the op in the call
	hash  uint64        // of its key
	wait  chan struct{} // closed when the op can be answered again or, if the store decides, when the refill in progress ends; or nil

	// Fields of rejections.

	use    rejectionUse // set by leases too
	epoch  uint32       // of the key
	renews *remembered  // rejection that the store's answer renews, or nil

	// Fields of leases.

	hasEntry bool   // the key had an entry
	refills  uint32 // number of its last refill
}

// rejectionUse determines whether a remembered rejection may answer an op.
type rejectionUse uint8

const (
	rejectionAnswers rejectionUse = iota
	rejectionSkipped              // must not answer, because hits of the key are leased
	rejectionEnds                 // ends, because hits of the key are refunded or its rule changed
)

// call is the scratch space of a call of Apply. It is reused.
type call struct {
	ops     []backend.Op
	asked   []pending    // ops of the store, in order
	late    []pending    // waiting ops
	waited  bool         // late has waited, and must not wait again
	refunds []refund     // hits to refund before asked
	rest    []backend.Op // refunds and asked, unless the store gets ops
}

// mayWait reports whether the op may be decided after the other ops of its call: none has the same key, and it has not waited yet.
func (p *pending) mayWait() bool {
	ops := p.call.ops
	for i := range ops {
		if i != p.index && ops[i].Key == ops[p.index].Key {
			return false
		}
	}
	return !p.call.waited
}

// Apply decides every op. It passes undecided ops to the store in one call, or in two if some of them wait for the answer to another
// call. Ops with the same key are decided in order.
func (b *Backend) Apply(ctx context.Context, ops []backend.Op) { b.apply(ctx, b.store, ops) }

func (b *Backend) apply(ctx context.Context, store backend.Backend, ops []backend.Op) {
	if b.rejections == nil && b.leases == nil {
		store.Apply(ctx, ops)
		return
	}
	c := b.calls.Get().(*call)
	c.ops = ops
	now := b.now()
	for i := range ops {
		ops[i].Origin = backend.FromStore
		b.decide(c, i, b.seed.Hash(&ops[i].Key), now) //nolint:contextcheck // other callers use the refill too
	}
	b.ask(ctx, store, c, now)
	if len(c.late) > 0 {
		b.decideLate(ctx, store, c, now)
	}
	clear(c.late)
	c.ops, c.late, c.waited = nil, c.late[:0], false
	b.calls.Put(c)
}

// decide decides the i-th op of c, or adds it to c.asked or c.late.
func (b *Backend) decide(c *call, i int, hash uint64, now engine.Micros) {
	c.asked = append(c.asked, pending{call: c, index: i, hash: hash})
	last := len(c.asked) - 1
	p := &c.asked[last]
	switch b.answer(&c.ops[i], p, now) {
	case askStore:
		return
	case later:
		c.late = append(c.late, *p)
	case decided:
	}
	c.asked = c.asked[:last]
}

// answer asks the leases first, and then the rejections.
func (b *Backend) answer(op *backend.Op, p *pending, now engine.Micros) verdict {
	if b.leases != nil {
		if v := b.leases.answer(op, p, now); v != askStore {
			if v == decided && b.rejections != nil {
				b.rejections.countMiss(op, p)
			}
			return v
		}
	}
	if b.rejections != nil {
		return b.rejections.answer(op, p, now)
	}
	return askStore
}

// ask passes c.asked to the store and updates rejections and leases with the answers. Rejections come first: they remember the store's
// answer, and leases then add the hits that they hold to it.
func (b *Backend) ask(ctx context.Context, store backend.Backend, c *call, at engine.Micros) {
	if len(c.asked) == 0 {
		return
	}
	sent, refunds := c.ops, len(c.refunds)
	if refunds > 0 || len(c.asked) < len(c.ops) {
		for i := range c.refunds {
			c.rest = append(c.rest, c.refunds[i].op())
		}
		for i := range c.asked {
			c.rest = append(c.rest, c.ops[c.asked[i].index])
		}
		sent = c.rest
	}
	store.Apply(ctx, sent)
	for i := range c.refunds {
		b.leases.refunds.sent(&c.refunds[i], &sent[i])
	}
	for i := range c.asked {
		p, op := &c.asked[i], &sent[refunds+i]
		if p.wait != nil && op.Err == nil { // a refill decided first would have reduced the hits left by an unknown number
			await(ctx, refillGrace, c.asked[i:i+1])
		}
		if b.rejections != nil {
			b.rejections.observe(op, p, at)
		}
		if b.leases != nil {
			b.leases.observe(op, p, at)
		}
		c.ops[p.index].Decision, c.ops[p.index].Err = op.Decision, op.Err
	}
	clear(c.rest) // drops references to the caller's memory
	c.rest, c.asked, c.refunds = c.rest[:0], c.asked[:0], c.refunds[:0]
}

// Maximum waits of calls. A call also waits for at most half of its caller's remaining time.
const (
	refillGrace = 5 * time.Millisecond  // wait of a store's answer for the refill that began before it
	longestWait = 10 * time.Millisecond // wait of an op for hits, or for the renewal of a rejection
)

// await waits until the wait channel of each op is closed.
func await(ctx context.Context, most time.Duration, ops []pending) {
	if deadline, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(deadline)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for i := range ops {
		select {
		case <-ops[i].wait:
		case <-ctx.Done():
		}
	}
}

// decideLate waits and then decides c.late. The call began at the time began.
func (b *Backend) decideLate(ctx context.Context, store backend.Backend, c *call, began engine.Micros) {
	await(ctx, longestWait, c.late)
	c.waited = true
	now := b.now()
	for i := range c.late {
		b.decide(c, c.late[i].index, c.late[i].hash, now) //nolint:contextcheck // as above
	}
	if b.budget > 0 {
		left := b.budget - time.Duration(now-began)*time.Microsecond
		bounded, cancel := context.WithTimeout(ctx, max(left, 0))
		defer cancel()
		ctx = bounded
	}
	b.ask(ctx, store, c, now)
}

// via is a Backend that passes undecided ops to another store.
type via struct {
	backend.Backend

	near *Backend
}

// Apply implements [backend.Backend].
func (v *via) Apply(ctx context.Context, ops []backend.Op) { v.near.apply(ctx, v.Backend, ops) }

// observed is the store used by leases for refills and refunds. Rejections learn from its answers.
type observed struct {
	backend.Backend

	near *Backend
}

// Apply implements [backend.Backend].
func (o observed) Apply(ctx context.Context, ops []backend.Op) {
	r, at := o.near.rejections, o.near.now()
	asked := make([]pending, len(ops))
	for i := range ops {
		asked[i].hash = o.near.seed.Hash(&ops[i].Key)
		r.ask(&ops[i], &asked[i], true)
	}
	o.Backend.Apply(ctx, ops)
	for i := range ops {
		r.observe(&ops[i], &asked[i], at)
	}
}
