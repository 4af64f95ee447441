package nearcache

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// resets counts the resets of each key. Hits taken before a reset must not be refunded after it: the reset has erased them, so the refund
// would return hits of another client. Keys may share a count, which is rare because there are many counts; a reset of one key then
// discards leased hits of the other.
type resets []atomic.Uint32

const resetCounts = 1 << 14 // a power of two

func (r resets) of(hash uint64) *atomic.Uint32 { return &r[hash>>32%resetCounts] }

// counter identifies a counter of the store and the limit under which its hits are leased. Counters share limits, which are immutable.
type counter struct {
	key   backend.Key
	hash  uint64 // of key
	limit *engine.Limit
}

// refund contains hits to refund to the store.
type refund struct {
	counter

	grant grant
}

// op returns the operation that refunds r.
func (r *refund) op() backend.Op {
	return backend.Op{
		Key: r.key, Limits: engine.Limits{*r.limit}, Mode: backend.Refund, Lease: backend.LeaseOff,
		Take: engine.Take{Cost: r.grant.left, Count: 1, Window: r.grant.window},
	}
}

// refundQueue holds the hits that [leases.run] will refund. Leasing stops when it holds maxRefunds elements, so it exceeds that only by
// the hits leased before. It also counts leased hits that were not spent, by outcome; see [Stats].
type refundQueue struct {
	mu     sync.Mutex
	queued []refund
	closed bool          // nothing is refunded any more
	wake   chan struct{} // receives a value when an element is queued

	returned, tooMany, ended, reset, failed atomic.Uint64
}

// maxRefunds is the length of the queue at which leasing stops.
const maxRefunds = 4096

func (q *refundQueue) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queued) >= maxRefunds
}

// add queues r until [leases.run] wakes up.
func (q *refundQueue) add(r refund) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		q.failed.Add(r.grant.left)
		return
	}
	q.queued = append(q.queued, r)
}

// pop removes and returns up to most elements.
func (q *refundQueue) pop(most int) []refund {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(most, len(q.queued))
	batch := q.queued[:n:n]
	if q.queued = q.queued[n:]; len(q.queued) == 0 {
		q.queued = nil
	}
	return batch
}

// close counts all queued and future elements as not refunded.
func (q *refundQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.queued {
		q.failed.Add(q.queued[i].grant.left)
	}
	q.queued, q.closed = nil, true
}

// sent counts the hits of r after op was to refund them. If op was not sent, it queues r again and returns false.
func (q *refundQueue) sent(r *refund, op *backend.Op) bool {
	count := &q.returned
	switch g, d := &r.grant, &op.Decision; {
	case errors.Is(op.Err, backend.ErrUnsent):
		q.add(*r)
		return false
	case op.Err != nil:
		count = &q.failed
	case g.window != d.Window:
		count = &q.ended
	case g.window == 0 && d.ResetAfter == 0:
		count = &q.tooMany
	}
	count.Add(r.grant.left)
	return true
}

// queueRefund queues hits of c for [leases.run].
func (ls *leases) queueRefund(c counter, g grant) {
	if g.left == 0 {
		return
	}
	ls.refunds.add(refund{c, g})
	select {
	case ls.refunds.wake <- struct{}{}:
	default:
	}
}

// maxBatch is the maximum number of keys per call for refunds.
const maxBatch = 128

// flush refunds everything in the queue until ctx ends. It returns false if elements remain, because the store is unavailable.
func (ls *leases) flush(ctx context.Context) bool {
	for ctx.Err() == nil {
		batch := ls.refunds.pop(maxBatch)
		if len(batch) == 0 {
			return true
		}
		if !ls.sendBatch(ctx, batch) {
			break
		}
	}
	return false
}

// sendBatch refunds batch in one call, which continues if ctx is cancelled. It returns false if any refunds were not sent; they are
// queued again.
func (ls *leases) sendBatch(ctx context.Context, batch []refund) (sent bool) {
	ends := time.Now().Add(storeTimeout)
	if end, ok := ctx.Deadline(); ok && end.Before(ends) {
		ends = end
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), ends)
	defer cancel()
	now := ls.now()
	batch = slices.DeleteFunc(batch, func(r refund) bool { return ls.discard(&r, now) })
	if len(batch) == 0 {
		return true
	}
	ops := make([]backend.Op, len(batch))
	for i := range batch {
		ops[i] = batch[i].op()
	}
	ls.store.Apply(ctx, ops)
	sent = true
	for i := range ops {
		sent = ls.refunds.sent(&batch[i], &ops[i]) && sent
	}
	return sent
}

// discard reports whether the hits of r cannot be refunded, and counts them if so.
func (ls *leases) discard(r *refund, now engine.Micros) bool {
	switch {
	case r.grant.resets != ls.resets.of(r.hash).Load():
		ls.refunds.reset.Add(r.grant.left)
	case r.grant.windowOver(now):
		ls.refunds.ended.Add(r.grant.left)
	default:
		return false
	}
	return true
}
