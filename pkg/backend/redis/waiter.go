package redis

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// item is an operation in progress. It contains copies of its inputs, because the caller may give up and reuse them while a writer still
// uses the item.
type item struct {
	waiter     *waiter
	node       *node
	list       *list // list of the node's queue that contains it; guarded by node.mu
	prev, next *item // in list
	follow     *item // next operation of the same call on the same key, which goes into the same batch
	follows    bool  // it follows another operation
	dropped    bool  // withdrawn by its caller before it was sent

	op      backend.Op // Decision and Err are the result once done is set
	count   uint64     // of op.Take, excluding merged items
	one     [1]engine.Limit
	penalty engine.Penalty
	done    atomic.Bool

	merged *item // next item merged into the same command
	head         // set only in the first item of a command
}

// head is the state of a command in its first item.
type head struct {
	last  *item         // last merged item
	items int           // number of items, including the first
	after *item         // previous head on the same key in the batch
	err   *remote.Error // reason why there is no decision

	kind  kind          // with scripts
	group int           // with scripts: number of its group, from 1
	hits  uint64        // with the reference's keys: hits to consume or refund
	at    engine.Micros // with the reference's keys: time that determines the window
}

// waiter is a call of Apply. It is reused when its caller and all of its items have released it.
type waiter struct {
	items   []item
	at      []int         // by item: index of its op
	users   atomic.Int32  // the caller, plus the items without an answer
	pending atomic.Int32  // items without an answer
	done    chan struct{} // receives when all items are answered, and when waiting may have become useless
	left    atomic.Bool   // the caller has given up after its time
	budget  time.Duration
	leaves  time.Time // time when the caller gives up: at the end of its budget or, for a probe, after half of it
	alarm   *alarm    // wakes up the caller then
}

// waiters holds waiters for reuse.
type waiters struct{ pool sync.Pool }

func (ws *waiters) get(n int) *waiter {
	w, ok := ws.pool.Get().(*waiter)
	if !ok {
		w = &waiter{done: make(chan struct{}, 1)}
		w.alarm = newAlarm(w.wake)
	}
	if cap(w.items) < n {
		w.items = make([]item, n)
	}
	w.items, w.at = w.items[:0], w.at[:0]
	w.left.Store(false)
	return w
}

// add copies op to an item of w, which must have room for it.
func (w *waiter) add(index int, op *backend.Op, n *node) *item {
	w.items = w.items[:len(w.items)+1]
	w.at = append(w.at, index)
	it := &w.items[len(w.items)-1]
	it.waiter, it.node = w, n
	it.list, it.prev, it.next, it.follow, it.merged, it.follows = nil, nil, nil, nil, nil, false
	it.done.Store(false)
	it.dropped = false
	name := it.op.Name[:0]
	it.op = *op
	it.op.Decision, it.op.Err = engine.Decision{}, nil
	it.count = op.Take.Count
	it.op.Name = append(name, op.Name...)
	if len(op.Limits) == 1 {
		it.one[0] = op.Limits[0]
		it.op.Limits = it.one[:]
	} else {
		it.op.Limits = slices.Clone(op.Limits)
	}
	if op.Take.Owner != "" {
		it.op.Take.Owner = strings.Clone(op.Take.Owner)
	}
	if op.Penalty != nil {
		it.penalty = *op.Penalty
		it.op.Penalty = &it.penalty
	}
	return it
}

// queue queues the items of w. Items on the same key are chained to the first one.
func (w *waiter) queue() {
	n := int32(len(w.items))
	w.pending.Store(n)
	w.users.Store(n + 1)
	if n == 1 {
		w.push(0)
		return
	}
	var heads map[backend.Key]*item
	if n > 16 {
		heads = make(map[backend.Key]*item, n)
	}
	for i := range w.items {
		it := &w.items[i]
		var last *item
		if heads != nil {
			last = heads[it.op.Key]
			heads[it.op.Key] = it
		} else {
			for j := i - 1; j >= 0 && last == nil; j-- {
				if w.items[j].op.Key == it.op.Key && w.items[j].node == it.node {
					last = &w.items[j]
				}
			}
		}
		if it.follows = last != nil; it.follows {
			last.follow = it
		}
	}
	for i := range w.items {
		if !w.items[i].follows {
			w.push(i)
		}
	}
}

// push queues the i-th item and those that follow it, or fails them.
func (w *waiter) push(i int) {
	it := &w.items[i]
	if e := it.node.push(it, i); e != nil {
		it.failAll(e)
	}
}

// await waits until all items are answered or the time is over. Then it withdraws unsent items.
func (w *waiter) await(ctx context.Context, now time.Time) {
	if w.wait(ctx, now) {
		return
	}
	for i := range w.items {
		if it := &w.items[i]; it.node.drop(it) {
			n := int32(0)
			for ; it != nil; it = it.follow {
				it.dropped = true
				n++
			}
			w.release(n)
		}
	}
}

// cancelPoll is the interval at which a caller checks for cancellation. Cancellations are rare, and waiting for them in a select would
// slow down every call.
const cancelPoll = 50 * time.Millisecond

// wait waits until all items are answered, the time is over, the caller has been cancelled for some time, or waiting is useless.
func (w *waiter) wait(ctx context.Context, now time.Time) (answered bool) {
	defer w.alarm.off()
	for {
		if next := now.Add(cancelPoll); next.Before(w.leaves) {
			w.alarm.set(next)
		} else {
			w.alarm.set(w.leaves)
		}
		<-w.done
		if w.pending.Load() == 0 {
			return true
		}
		now = time.Now()
		late := now.Sub(w.leaves)
		switch {
		case late >= 0:
			w.items[0].node.pool.lag.Note(late)
		case ctx.Err() != nil:
			return false
		case !w.tooLate():
			continue
		}
		w.left.Store(true)
		return false
	}
}

// wake makes the caller check whether waiting is still useful.
func (w *waiter) wake() {
	select {
	case w.done <- struct{}{}:
	default: // it is about to check
	}
}

// tooLate reports whether all nodes without an answer are silent, and all of their ops have a fallback.
func (w *waiter) tooLate() bool {
	for i := range w.items {
		if it := &w.items[i]; !it.done.Load() && (it.op.Wait == backend.WaitFull || !it.node.breaker.Silent()) {
			return false
		}
	}
	return true
}

// answer completes the item. The caller of answer must not use it afterwards.
func (it *item) answer() {
	w := it.waiter
	it.done.Store(true)
	if w.pending.Add(-1) == 0 {
		w.wake()
	}
	w.release(1)
}

// fail completes the item with an error.
func (it *item) fail(e *remote.Error) {
	it.op.Decision, it.op.Err = engine.Decision{}, e
	it.answer()
}

// failAll completes the item and those that follow it with an error.
func (it *item) failAll(e *remote.Error) {
	for it != nil {
		next := it.follow
		it.fail(e)
		it = next
	}
}

// release releases n uses of w. The last one returns w to the pool.
func (w *waiter) release(n int32) {
	if w.users.Add(-n) > 0 {
		return
	}
	select {
	case <-w.done: // no caller waited for it
	default:
	}
	w.items[0].node.pool.waiters.pool.Put(w)
}

// sameTake reports whether two takes or checks on one key may be merged. Those of lists may not, because the strictest limit, which the
// decision describes, may change with each take.
func sameTake(a, b *backend.Op) bool {
	if a.Mode != b.Mode || a.Take.Cost != b.Take.Cost || a.Penalty != nil || b.Penalty != nil || a.Reserve != nil || b.Reserve != nil ||
		a.Take.Owner != "" || b.Take.Owner != "" || a.Take.Extra != 0 || b.Take.Extra != 0 || len(a.Limits) != 1 || len(b.Limits) != 1 {
		return false
	}
	switch a.Mode {
	case backend.Take:
		if a.Take.Cost == 0 && a.Take.Count != b.Take.Count { // a check
			return false
		}
	case backend.Peek:
		if a.Take.Count != b.Take.Count {
			return false
		}
	case backend.Refund, backend.Reset, backend.ForceReset, backend.Settle:
		return false
	}
	return !a.Limits[0].Algorithm.Queues() && a.Limits[0].Equal(b.Limits[0])
}

// spends reports whether op is a take with a cost.
func spends(op *backend.Op) bool { return op.Mode == backend.Take && op.Take.Cost > 0 }

// split completes the operations merged into one take, in order of arrival: the first ones get the admitted hits.
func split(first *item) {
	d, cost := first.op.Decision, min(first.op.Take.Cost, engine.MaxHits)
	countsRejected := first.op.Limits[0].CountRefused && !first.op.Limits[0].Listed
	admitted, left, retry := d.Admitted, d.Left, d.RetryAfter
	for it := first; it != nil; {
		next := it.merged
		got := min(it.count, admitted)
		d.Admitted, d.Left, d.RetryAfter = got, left, retry
		if got == it.count {
			d.RetryAfter = 0
		}
		spent := got
		if countsRejected {
			spent = it.count
		}
		admitted -= got
		left -= min(left, spent*cost)
		it.op.Decision = d
		it.answer()
		it = next
	}
}
