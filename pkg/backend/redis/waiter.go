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

// item is one operation in progress. It holds copies of all it needs, because its caller may give up, and reuse what it
// passed, while a writer is still working on it.
type item struct {
	waiter     *waiter
	node       *node
	list       *list // of the node's queue, while it is in there; guarded by node.mu
	prev, next *item // in list
	follow     *item // the next operation of the same call on the same key, which goes into the same batch
	follows    bool  // it is such an operation
	dropped    bool  // withdrawn by its caller before it was sent

	op      backend.Op // Decision and Err are the answer, once done is set
	count   uint64     // of op.Take, without that of items merged into it
	one     [1]engine.Limit
	penalty engine.Penalty
	done    atomic.Bool

	merged *item // the next item that was merged into the same command
	head         // of the first one alone
}

// head is what a writer keeps in the first item of a command.
type head struct {
	last  *item         // of those that were merged
	items int           // how many those are
	after *item         // the head before it on the same key, in the same batch
	err   *remote.Error // why there is no decision

	kind  kind          // with scripts
	group int           // with scripts: the number of its group, from 1
	hits  uint64        // with the reference's keys: hits to spend or to refund
	at    engine.Micros // with the reference's keys: the time that determines the window
}

// waiter is a call of Apply. It is reused once its caller and all of its items are done with it.
type waiter struct {
	items   []item
	at      []int         // the index in ops of each item
	users   atomic.Int32  // the caller, and each item not answered yet
	pending atomic.Int32  // items that are not answered yet
	done    chan struct{} // receives once all items are answered, and when there may be nothing to wait for any more
	left    atomic.Bool   // the caller has given up because its time was over
	budget  time.Duration
	leaves  time.Time // when the caller gives up: at the end of its budget or, for a probe, after half of it
	alarm   *alarm    // wakes it then
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

// add copies op to an item of w, which has room for it.
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

// queue queues the items of w. Items on the same key are chained to the first of them.
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

// await waits until all items are answered or the time is over, and then withdraws what has not been sent yet.
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

// cancelPoll is how often a caller looks whether it has been cancelled. Hardly any is, and to wait for that too, in a select, would cost
// every call.
const cancelPoll = 50 * time.Millisecond

// wait waits until all items are answered, the time is over, the caller has been cancelled for some time, or there is nothing to wait for.
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

// wake has the caller look whether there is still something to wait for.
func (w *waiter) wake() {
	select {
	case w.done <- struct{}{}:
	default: // it is about to look
	}
}

// tooLate reports whether all nodes that have not answered are silent, and something else decides in their place.
func (w *waiter) tooLate() bool {
	for i := range w.items {
		if it := &w.items[i]; !it.done.Load() && (it.op.Wait == backend.WaitFull || !it.node.breaker.Silent()) {
			return false
		}
	}
	return true
}

// answer tells the caller that the item is answered. The item must not be used afterwards.
func (it *item) answer() {
	w := it.waiter
	it.done.Store(true)
	if w.pending.Add(-1) == 0 {
		w.wake()
	}
	w.release(1)
}

// fail answers it with an error.
func (it *item) fail(e *remote.Error) {
	it.op.Decision, it.op.Err = engine.Decision{}, e
	it.answer()
}

// failAll answers it and those that follow it with an error.
func (it *item) failAll(e *remote.Error) {
	for it != nil {
		next := it.follow
		it.fail(e)
		it = next
	}
}

// release gives up n uses of w. The last one returns it for reuse.
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

// sameTake reports whether two takes or looks on one key may become one command. Those of lists may not: which limit is
// the strictest, and so what is reported, may change with each take.
func sameTake(a, b *backend.Op) bool {
	if a.Mode != b.Mode || a.Take.Cost != b.Take.Cost || a.Penalty != nil || b.Penalty != nil || a.Reserve != nil || b.Reserve != nil ||
		a.Take.Owner != "" || b.Take.Owner != "" || a.Take.Extra != 0 || b.Take.Extra != 0 || len(a.Limits) != 1 || len(b.Limits) != 1 {
		return false
	}
	switch a.Mode {
	case backend.Take:
		if a.Take.Cost == 0 && a.Take.Count != b.Take.Count { // a look
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

// split answers the operations that were merged into one take, in order of arrival: the first ones get what was
// admitted.
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
