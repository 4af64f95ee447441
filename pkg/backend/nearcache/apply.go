package nearcache

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// scratch is the memory that one call of Apply needs. It is reused.
type scratch struct {
	store backend.Backend
	asked []pending    // one for each op that the store is asked about, in order
	late  []pending    // ops that wait for the answer to another call
	rest  []backend.Op // the ops for the store, if they are not just the caller's
}

// add adds an op about which the store may have to be asked. What is returned is in memory that is reused.
func (c *scratch) add(p pending) *pending {
	c.asked = append(c.asked, p)
	return &c.asked[len(c.asked)-1]
}

// dropLast removes the op that was added last, about which the store is not asked.
func (c *scratch) dropLast() { c.asked = c.asked[:len(c.asked)-1] }

// pending is what is known about an op in progress.
type pending struct {
	index int // of the op in the call
	hash  uint64

	rejection rejectionUse
	epoch     uint32 // of its key

	lesson  lesson
	renewal *renewal      // the renewal that this op carries out, or nil
	wait    chan struct{} // closed at the end of the refill or renewal to wait for
	refill  chan struct{} // closed at the end of the refill that was asked for before this op, or nil
	refills uint32        // the number of the key's last refill, if the lesson is withoutHeld
	refunds []refund      // hits to refund before the op
}

// rejectionUse is what a remembered rejection of the op's key may be used for.
type rejectionUse uint8

const (
	rejectionAnswers rejectionUse = iota // it may answer the op
	rejectionSkipped                     // it does not answer this op, because hits are leased
	rejectionEnds                        // the op ends it
)

// lesson is what the store's answer to an op says about the lease of its key.
type lesson uint8

const (
	nothing     lesson = iota
	takeLeft           // the op is a take: this is left for leases
	withoutHeld        // the leased hits are to be added to the answer
	wasReset           // the lease is worthless
)

// Apply decides every op. It asks the store about those that it cannot answer itself, in one call, or in two if some of
// them wait for the outcome of another call. Ops that share a key are decided in order.
func (b *Backend) Apply(ctx context.Context, ops []backend.Op) { b.apply(ctx, b.store, ops) }

func (b *Backend) apply(ctx context.Context, store backend.Backend, ops []backend.Op) {
	if b.rejections == nil && b.leases == nil {
		store.Apply(ctx, ops)
		return
	}
	c := b.calls.Get().(*scratch)
	c.store = store
	at := b.now()
	for i := range ops {
		ops[i].Origin = backend.FromStore
		p := c.add(pending{index: i, hash: b.hash(&ops[i].Key)})
		switch b.answer(&ops[i], p, at, ops) { //nolint:contextcheck // a refill does not belong to this caller alone
		case askStore:
			continue
		case wait:
			c.late = append(c.late, *p)
		case served:
		}
		c.dropLast()
	}
	b.ask(ctx, ops, c, at)
	if len(c.late) > 0 {
		b.await(ctx, ops, c, at)
	}
	clear(c.rest) // drops references to what belongs to the caller
	clear(c.late)
	c.rest, c.asked, c.late = c.rest[:0], c.asked[:0], c.late[:0]
	b.calls.Put(c)
}

// answer decides op from what is leased or remembered here, or notes in p what to do with the store's answer. ops are
// the ops of the call; if nil, op may not wait.
func (b *Backend) answer(op *backend.Op, p *pending, at engine.Micros, ops []backend.Op) action {
	if b.leases != nil {
		if a := b.leases.answer(op, p, at, ops); a != askStore {
			if a == served && b.rejections != nil {
				b.rejections.countMiss(op, p)
			}
			return a
		}
	}
	if b.rejections != nil {
		return b.rejections.answer(op, p, at, ops)
	}
	return askStore
}

// mayWait reports whether the i-th op may be decided after the others: no other one has its key. If ops is nil it may
// not.
func mayWait(ops []backend.Op, i int) bool {
	for k := range ops {
		if k != i && ops[k].Key == ops[i].Key {
			return false
		}
	}
	return ops != nil
}

// ask asks the store about the ops of c.asked, and learns from its answers.
func (b *Backend) ask(ctx context.Context, ops []backend.Op, c *scratch, at engine.Micros) {
	if len(c.asked) == 0 {
		return
	}
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
	c.store.Apply(ctx, asked)
	now := at
	if b.leases != nil { // which alone want to know
		now = b.now()
	}
	k := 0
	for i := range c.asked {
		p := &c.asked[i]
		for j := range p.refunds {
			b.leases.refunds.sent(&p.refunds[j], &asked[k]) // otherwise later: the caller did not wait
			k++
		}
		if p.refill != nil && asked[k].Err == nil && awaitRefill(ctx, p.refill) {
			now = b.now()
		}
		b.learn(&asked[k], p, at, now)
		if !same {
			ops[p.index].Decision, ops[p.index].Err = asked[k].Decision, asked[k].Err
		}
		k++
	}
}

// refillGrace is how long an answer of the store may wait for that to a refill that was asked for earlier. It also waits
// for no more than half of its caller's remaining time.
const refillGrace = 5 * time.Millisecond

// awaitRefill waits for that refill, without which it is not known what remains: it may have been debited before. It
// reports false if there was nothing to wait for.
func awaitRefill(ctx context.Context, refill chan struct{}) bool {
	select {
	case <-refill:
		return false
	default:
	}
	timer := timerFor(ctx, refillGrace)
	defer timer.Stop()
	select {
	case <-refill:
	case <-timer.C:
	case <-ctx.Done():
	}
	return true
}

// timerFor returns a timer for d, or for half of the remaining time of a caller that has less.
func timerFor(ctx context.Context, d time.Duration) *time.Timer {
	if deadline, ok := ctx.Deadline(); ok {
		d = min(d, time.Until(deadline)/2)
	}
	return time.NewTimer(d)
}

// learn learns from the store's answer to op, which it was sent at time at or later.
func (b *Backend) learn(op *backend.Op, p *pending, at, now engine.Micros) {
	if b.leases != nil && !b.leases.learn(op, p, at, now) {
		p.rejection = rejectionEnds
	}
	if b.rejections != nil {
		b.rejections.learn(op, p, at)
	}
}

// longestWait bounds how long a call waits for hits being fetched. It also waits for no more than half of its caller's
// remaining time.
const longestWait = 10 * time.Millisecond

// await waits for what the late ops of c wait for, and then decides them in order, without waiting again.
func (b *Backend) await(ctx context.Context, ops []backend.Op, c *scratch, at engine.Micros) {
	timer := timerFor(ctx, longestWait)
	defer timer.Stop()
	for i := range c.late {
		select {
		case <-c.late[i].wait:
			continue
		case <-timer.C:
		case <-ctx.Done():
		}
		break
	}
	clear(c.rest)
	c.rest, c.asked = c.rest[:0], c.asked[:0]
	now := b.now()
	for i := range c.late {
		late := &c.late[i]
		p := c.add(pending{index: late.index, hash: late.hash})
		if b.answer(&ops[p.index], p, now, nil) != askStore { //nolint:contextcheck // as above
			c.dropLast()
		}
	}
	if b.budget > 0 {
		left := b.budget - time.Duration(now-at)*time.Microsecond
		bounded, cancel := context.WithTimeout(ctx, max(left, 0))
		defer cancel()
		ctx = bounded
	}
	b.ask(ctx, ops, c, now)
}
