package nearcache

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// resets counts the resets of each key, so that hits that were taken before one are not refunded after it: the store
// has forgotten them, and would forget as many hits of another client. Keys may share a count, which is rare because
// there are so many; hits of the one are then lost when the other is reset.
type resets []atomic.Uint32

const resetCounts = 1 << 14 // a power of two

func (r resets) of(hash uint64) *atomic.Uint32 { return &r[hash>>32%resetCounts] }

// outcomes counts what has become of hits that were leased and not spent; see [Stats].
type outcomes struct{ returned, full, ended, reset, failed atomic.Uint64 }

// counter is a counter of the store, under the limit by which hits of it are leased. Counters share limits, which do not change.
type counter struct {
	key   backend.Key
	hash  uint64 // of key
	limit *engine.Limit
}

// refund is hits to refund to the store.
type refund struct {
	counter

	grant grant
}

// op returns the operation that gives b back.
func (b *refund) op() backend.Op {
	return backend.Op{
		Key: b.key, Limits: engine.Limits{*b.limit}, Mode: backend.Refund, Lease: backend.LeaseOff,
		Take: engine.Take{Cost: b.grant.left, Count: 1, Window: b.grant.window},
	}
}

// refundQueue is the hits that [leases.run] refunds. It holds no more than what the known keys had leased, and what
// was leased before it held maxRefunds.
type refundQueue struct {
	mu       sync.Mutex
	queued   []refund
	closed   bool // nothing is refunded any more
	outcomes *outcomes
	wake     chan struct{} // receives when something is queued
}

// maxRefunds is how many the queue may hold before nothing more is leased.
const maxRefunds = 4096

func (q *refundQueue) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queued) >= maxRefunds
}

// add queues b, and wakes [leases.run].
func (q *refundQueue) add(b refund) {
	q.requeue(b)
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// requeue queues b for the next time that something wakes [leases.run].
func (q *refundQueue) requeue(b refund) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		q.outcomes.failed.Add(b.grant.left)
		return
	}
	q.queued = append(q.queued, b)
}

// pop removes and returns up to most of what is queued.
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

// close counts what is still queued, or will be, as not refunded.
func (q *refundQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.queued {
		q.outcomes.failed.Add(q.queued[i].grant.left)
	}
	q.queued, q.closed = nil, true
}

// sent counts hits of b, which op was to refund. If op was not sent, it queues b again and reports false.
func (q *refundQueue) sent(b *refund, op *backend.Op) bool {
	switch g, d := &b.grant, &op.Decision; {
	case errors.Is(op.Err, backend.ErrUnsent):
		q.requeue(*b)
		return false
	case op.Err != nil:
		q.outcomes.failed.Add(g.left)
	case g.window != d.Window:
		q.outcomes.ended.Add(g.left)
	case g.window == 0 && d.ResetAfter == 0:
		q.outcomes.full.Add(g.left)
	default:
		q.outcomes.returned.Add(g.left)
	}
	return true
}

// queueRefund queues grants of c to be refunded by [leases.run].
func (ls *leases) queueRefund(c counter, grants ...grant) {
	for _, g := range grants {
		if g.left > 0 {
			ls.refunds.add(refund{c, g})
		}
	}
}

// maxBatch is how many keys' hits are refunded in one call at most.
const maxBatch = 128

// flush refunds everything in the queue, until ctx ends. It reports false if something is left, because the store
// cannot be asked now.
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

// sendBatch gives batch back in one call, which goes on if ctx is cancelled. It reports false if some of it was not sent,
// and is queued again.
func (ls *leases) sendBatch(ctx context.Context, batch []refund) (sent bool) {
	ends := time.Now().Add(storeTimeout)
	if end, ok := ctx.Deadline(); ok && end.Before(ends) {
		ends = end
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), ends)
	defer cancel()
	now := ls.now()
	ops, kept := make([]backend.Op, 0, len(batch)), batch[:0]
	for i := range batch {
		b := &batch[i]
		if ls.discard(b, now) {
			continue
		}
		ops, kept = append(ops, b.op()), append(kept, *b)
	}
	if len(ops) == 0 {
		return true
	}
	ls.store.Apply(ctx, ops)
	sent = true
	for i := range ops {
		sent = ls.refunds.sent(&kept[i], &ops[i]) && sent
	}
	return sent
}

// discard reports whether there is nothing to give b back to, and counts its hits if so.
func (ls *leases) discard(b *refund, now engine.Micros) bool {
	switch {
	case b.grant.resets != ls.resets.of(b.hash).Load():
		ls.outcomes.reset.Add(b.grant.left)
	case b.grant.windowOver(now):
		ls.outcomes.ended.Add(b.grant.left)
	default:
		return false
	}
	return true
}
