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

// resets counts the resets of each key, so that hits that were taken before one are not given back after it: the store
// has forgotten them, and would forget as many hits of somebody else. Keys may share a count, which is rare because
// there are so many; hits of the one are then lost when the other is reset.
type resets []atomic.Uint32

const resetCounts = 1 << 14 // a power of two

func (r resets) of(hash uint64) *atomic.Uint32 { return &r[hash>>32%resetCounts] }

// fates counts what has become of hits that were leased and not spent; see [Stats].
type fates struct{ returned, full, ended, reset, failed atomic.Uint64 }

// counter is a counter of the store, under the limit by which hits of it are leased.
type counter struct {
	key   backend.Key
	hash  uint64 // of key
	limit engine.Limit
}

// back is hits to give back to the store.
type back struct {
	counter

	grant grant
}

// op returns the operation that gives b back.
func (b *back) op() backend.Op {
	return backend.Op{
		Key: b.key, Limits: engine.Limits{b.limit}, Mode: backend.Give, Lease: backend.LeaseOff,
		Take: engine.Take{Cost: b.grant.left, Count: 1, Window: b.grant.window},
	}
}

// backs is the queue of hits that [leases.run] gives back. It holds no more than what the known keys had leased, and
// what was leased before it held maxBacks.
type backs struct {
	mu     sync.Mutex
	all    []back
	closed bool // nothing is given back any more
	fates  *fates
	wake   chan struct{} // receives when something is queued
}

// maxBacks is how many the queue may hold before nothing more is leased.
const maxBacks = 4096

func (bs *backs) full() bool {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return len(bs.all) >= maxBacks
}

// add queues b.
func (bs *backs) add(b back) {
	bs.again(b)
	select {
	case bs.wake <- struct{}{}:
	default:
	}
}

// again queues b for the next time that something wakes [leases.run].
func (bs *backs) again(b back) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if bs.closed {
		bs.fates.failed.Add(b.grant.left)
		return
	}
	bs.all = append(bs.all, b)
}

// cut removes up to most of them from the queue.
func (bs *backs) cut(most int) []back {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	n := min(most, len(bs.all))
	cut := bs.all[:n:n]
	if bs.all = bs.all[n:]; len(bs.all) == 0 {
		bs.all = nil
	}
	return cut
}

// close counts what is still queued, or will be, as not given back.
func (bs *backs) close() {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	for i := range bs.all {
		bs.fates.failed.Add(bs.all[i].grant.left)
	}
	bs.all, bs.closed = nil, true
}

// sent counts hits of b, which op was to give back. If op was not sent, it queues b again and reports false.
func (bs *backs) sent(b *back, op *backend.Op) bool {
	switch g, d := &b.grant, &op.Decision; {
	case errors.Is(op.Err, backend.ErrUnsent):
		bs.again(*b)
		return false
	case op.Err != nil:
		bs.fates.failed.Add(g.left)
	case g.window != d.Window:
		bs.fates.ended.Add(g.left)
	case g.window == 0 && d.ResetAfter == 0:
		bs.fates.full.Add(g.left)
	default:
		bs.fates.returned.Add(g.left)
	}
	return true
}

// giveBack queues grants of c to be given back by [leases.run].
func (ls *leases) giveBack(c counter, grants ...grant) {
	for _, g := range grants {
		if g.left > 0 {
			ls.backs.add(back{c, g})
		}
	}
}

// maxGives is how many keys' hits are given back in one call at most.
const maxGives = 128

// flush gives back everything in the queue, until ctx ends. It reports false if something is left, because the store
// cannot be asked now.
func (ls *leases) flush(ctx context.Context) bool {
	for ctx.Err() == nil {
		cut := ls.backs.cut(maxGives)
		if len(cut) == 0 {
			return true
		}
		if !ls.give(ctx, cut) {
			break
		}
	}
	return false
}

// give gives cut back in one call, which goes on if ctx is cancelled. It reports false if some of it was not sent, and
// is queued again.
func (ls *leases) give(ctx context.Context, cut []back) (sent bool) {
	ends := time.Now().Add(patience)
	if end, ok := ctx.Deadline(); ok && end.Before(ends) {
		ends = end
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), ends)
	defer cancel()
	now := ls.now()
	ops, kept := make([]backend.Op, 0, len(cut)), cut[:0]
	for i := range cut {
		b := &cut[i]
		if ls.worthless(b, now) {
			continue
		}
		ls.lifts(b.hash)
		ops, kept = append(ops, b.op()), append(kept, *b)
	}
	if len(ops) == 0 {
		return true
	}
	ls.store.Apply(ctx, ops)
	sent = true
	for i := range ops {
		ls.lifts(kept[i].hash)
		sent = ls.backs.sent(&kept[i], &ops[i]) && sent
	}
	return sent
}

// worthless reports whether there is nothing to give b back to, and counts its hits if so.
func (ls *leases) worthless(b *back, now engine.Micros) bool {
	switch {
	case b.grant.resets != ls.resets.of(b.hash).Load():
		ls.fates.reset.Add(b.grant.left)
	case b.grant.late(now):
		ls.fates.ended.Add(b.grant.left)
	default:
		return false
	}
	return true
}

// lifts ends what is remembered about a key to which hits are given back.
func (ls *leases) lifts(hash uint64) {
	if r := ls.refusals; r != nil {
		r.epoch(hash).next()
	}
}
