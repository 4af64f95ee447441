package nearcache

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// call is what one call of Apply needs, kept for the next one.
type call struct {
	asked []note       // one for each op that the store is asked for, in order
	late  []note       // those that wait for what another call is told
	rest  []backend.Op // what the store is asked for, where that is not what the caller asks for
}

// note is what is known of an op on its way.
type note struct {
	index int // of the op among those of the call
	hash  uint64

	epoch uint32 // of its key
	ends  bool   // the op ends what is remembered of its key

	counted bool          // among what its key wants
	learns  bool          // the answer tells what is left for leases
	adds    bool          // what is leased is added to the answer
	resets  bool          // what is leased says nothing afterwards
	holds   bool          // something is leased, so that no refusal that is remembered is the answer
	renews  *renewal      // which this op is; nil: it is none
	wait    chan struct{} // of the refill or the renewal to wait for
	back    *returning    // what goes back before the op, else nil
}

// returning is a lease that has ended.
type returning struct {
	limit  engine.Limit
	grants [2]grant
}

// Apply decides every op, asking the store for those that it cannot answer itself, in one call, or in two where some wait
// for what is on its way to another. Where ops share a key they are decided in their order.
func (b *Backend) Apply(ctx context.Context, ops []backend.Op) {
	if b.refusals == nil && b.leases == nil {
		b.store.Apply(ctx, ops)
		return
	}
	c := b.calls.Get().(*call)
	at := b.now()
	for i := range ops {
		ops[i].Remembered = false
		n := note{index: i, hash: b.hash(&ops[i].Key)}
		switch b.answer(&ops[i], &n, at, ops) { //nolint:contextcheck // refills are not for this caller alone
		case served:
		case waits:
			c.late = append(c.late, n)
		case asks:
			c.asked = append(c.asked, n)
		}
	}
	b.ask(ctx, ops, c, at)
	if len(c.late) > 0 {
		b.await(ctx, ops, c, at)
	}
	clear(c.rest) // what they point to belongs to the caller
	clear(c.late)
	c.rest, c.asked, c.late = c.rest[:0], c.asked[:0], c.late[:0]
	b.calls.Put(c)
}

// answer decides op by what is leased or remembered here, or notes in n what there is to do with the store's answer. It
// may wait unless ops, those of the call, is nil.
func (b *Backend) answer(op *backend.Op, n *note, at engine.Micros, ops []backend.Op) verdict {
	if b.leases != nil {
		if v := b.leases.answer(op, n, at, ops); v != asks {
			return v
		}
	}
	if b.refusals != nil {
		return b.refusals.answer(op, n, at, ops)
	}
	return asks
}

// alone reports whether no other of ops has the key of the i-th.
func alone(ops []backend.Op, i int) bool {
	for k := range ops {
		if k != i && ops[k].Key == ops[i].Key {
			return false
		}
	}
	return true
}

// ask asks the store for the ops that c names, and learns from what it answers.
func (b *Backend) ask(ctx context.Context, ops []backend.Op, c *call, at engine.Micros) {
	if len(c.asked) == 0 {
		return
	}
	asked, same := ops, len(c.asked) == len(ops)
	for i := range c.asked {
		same = same && c.asked[i].back == nil
	}
	if !same {
		for i := range c.asked {
			n := &c.asked[i]
			c.rest = n.back.append(c.rest, ops[n.index].Key)
			c.rest = append(c.rest, ops[n.index])
		}
		asked = c.rest
	}
	b.store.Apply(ctx, asked)
	now := b.now()
	k := 0
	for i := range c.asked {
		n := &c.asked[i]
		if n.back != nil {
			k = b.leases.returned(asked, k, n.back)
		}
		b.learn(&asked[k], n, at, now)
		if !same {
			ops[n.index].Decision, ops[n.index].Err = asked[k].Decision, asked[k].Err
		}
		k++
	}
}

// append appends the operations that give b back.
func (b *returning) append(ops []backend.Op, key backend.Key) []backend.Op {
	if b == nil {
		return ops
	}
	for _, g := range b.grants {
		if g.left > 0 {
			ops = append(ops, (&back{key: key, limit: b.limit, grant: g}).op())
		}
	}
	return ops
}

// returned counts what b gave back by the ops from the k-th on, and tells where the next one stands.
func (ls *leases) returned(ops []backend.Op, k int, b *returning) int {
	for _, g := range b.grants {
		if g.left > 0 {
			ls.backs.gone(g.left, ops[k].Err)
			k++
		}
	}
	return k
}

// learn learns from what the store answered to op, having been asked at the given time or later.
func (b *Backend) learn(op *backend.Op, n *note, at, now engine.Micros) {
	if b.leases != nil && !b.leases.learn(op, n, at, now) {
		n.ends = true
	}
	if b.refusals != nil {
		b.refusals.learn(op, n, at)
	}
}

// How long a call waits for hits that are on their way, at most: so long, and half of what its caller still has.
const longestWait = 10 * time.Millisecond

// await waits for what c's late ops wait for, and then decides them as they come, without waiting again.
func (b *Backend) await(ctx context.Context, ops []backend.Op, c *call, at engine.Micros) {
	most := longestWait
	if deadline, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(deadline)/2)
	}
	timer := time.NewTimer(most)
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
		n := note{index: late.index, hash: late.hash, counted: late.counted}
		if b.answer(&ops[n.index], &n, now, nil) == asks { //nolint:contextcheck // as above
			c.asked = append(c.asked, n)
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
