package nearcache

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// call is the memory that one call of Apply needs. It is reused.
type call struct {
	asked []note       // one for each op that the store is asked about, in order
	late  []note       // ops that wait for the answer to another call
	rest  []backend.Op // the ops for the store, if they are not just the caller's
}

// add adds an op about which the store may have to be asked. The note is in memory that is reused.
func (c *call) add(n note) *note {
	c.asked = append(c.asked, n)
	return &c.asked[len(c.asked)-1]
}

// dropLast removes the op that was added last, about which the store is not asked.
func (c *call) dropLast() { c.asked = c.asked[:len(c.asked)-1] }

// note is what is known about an op in progress.
type note struct {
	index int // of the op in the call
	hash  uint64

	epoch uint32 // of its key
	ends  bool   // the op ends what is remembered about its key

	counted bool          // its hits are counted in its entry
	learns  bool          // the answer says what is left for leases
	adds    bool          // leased hits are to be added to the answer
	resets  bool          // leases are worthless afterwards
	holds   bool          // hits are leased, so a remembered refusal is not the answer
	renews  *renewal      // the renewal that this op carries out, or nil
	wait    chan struct{} // closed at the end of the refill or renewal to wait for
	after   chan struct{} // closed at the end of the refill that was asked for before this op, or nil
	refills uint32        // the number of the key's last refill, if adds is set
	backs   []back        // hits to give back before the op
}

// Apply decides every op. It asks the store about those that it cannot answer itself, in one call, or in two if some of
// them wait for the outcome of another call. Ops that share a key are decided in order.
func (b *Backend) Apply(ctx context.Context, ops []backend.Op) {
	if b.refusals == nil && b.leases == nil {
		b.store.Apply(ctx, ops)
		return
	}
	c := b.calls.Get().(*call)
	at := b.now()
	for i := range ops {
		ops[i].Remembered = false
		n := c.add(note{index: i, hash: b.hash(&ops[i].Key)})
		switch b.answer(&ops[i], n, at, ops) { //nolint:contextcheck // a refill does not belong to this caller alone
		case asks:
			continue
		case waits:
			c.late = append(c.late, *n)
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

// answer decides op from what is leased or remembered here, or notes in n what to do with the store's answer. ops are
// the ops of the call; if nil, op may not wait.
func (b *Backend) answer(op *backend.Op, n *note, at engine.Micros, ops []backend.Op) verdict {
	if b.leases != nil {
		if v := b.leases.answer(op, n, at, ops); v != asks {
			if v == served && b.refusals != nil {
				b.refusals.missed(op, n)
			}
			return v
		}
	}
	if b.refusals != nil {
		return b.refusals.answer(op, n, at, ops)
	}
	return asks
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

// ask asks the store about the ops noted in c.asked, and learns from its answers.
func (b *Backend) ask(ctx context.Context, ops []backend.Op, c *call, at engine.Micros) {
	if len(c.asked) == 0 {
		return
	}
	asked, same := ops, len(c.asked) == len(ops)
	for i := range c.asked {
		same = same && len(c.asked[i].backs) == 0
	}
	if !same {
		for i := range c.asked {
			n := &c.asked[i]
			for j := range n.backs {
				c.rest = append(c.rest, n.backs[j].op())
			}
			c.rest = append(c.rest, ops[n.index])
		}
		asked = c.rest
	}
	b.store.Apply(ctx, asked)
	now := b.now()
	k := 0
	for i := range c.asked {
		n := &c.asked[i]
		for j := range n.backs {
			b.leases.backs.sent(&n.backs[j], &asked[k]) // otherwise later: the caller did not wait
			k++
		}
		if n.after != nil && asked[k].Err == nil && overtook(ctx, n.after) {
			now = b.now()
		}
		b.learn(&asked[k], n, at, now)
		if !same {
			ops[n.index].Decision, ops[n.index].Err = asked[k].Decision, asked[k].Err
		}
		k++
	}
}

// overtaken is how long an answer of the store may wait for that to a refill that was asked for earlier. It also waits
// for no more than half of its caller's remaining time.
const overtaken = 5 * time.Millisecond

// overtook waits for that refill, without which it is not known what remains: it may have been debited before. It
// reports false if there was nothing to wait for.
func overtook(ctx context.Context, refill chan struct{}) bool {
	select {
	case <-refill:
		return false
	default:
	}
	timer := timerFor(ctx, overtaken)
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
func (b *Backend) learn(op *backend.Op, n *note, at, now engine.Micros) {
	if b.leases != nil && !b.leases.learn(op, n, at, now) {
		n.ends = true
	}
	if b.refusals != nil {
		b.refusals.learn(op, n, at)
	}
}

// longestWait bounds how long a call waits for hits being fetched. It also waits for no more than half of its caller's
// remaining time.
const longestWait = 10 * time.Millisecond

// await waits for what the late ops of c wait for, and then decides them in order, without waiting again.
func (b *Backend) await(ctx context.Context, ops []backend.Op, c *call, at engine.Micros) {
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
		n := c.add(note{index: late.index, hash: late.hash, counted: late.counted})
		if b.answer(&ops[n.index], n, now, nil) != asks { //nolint:contextcheck // as above
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
