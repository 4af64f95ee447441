package memcached

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// call is one call of Apply.
type call struct {
	backend *Backend
	ops     []backend.Op
	shares  []*share
	budget  time.Duration
}

// share is the part of a call that is one exchange with a server: operations on one counter, or checks. Its items are sent in
// order.
type share struct {
	server *server
	items  []*item
	budget time.Duration // the caller's
	done   chan struct{} // closed when all items have results
	left   atomic.Bool   // the caller gave up at its deadline
}

// plan turns ops into items and assigns them to shares.
func (c *call) plan() {
	now, servers := c.backend.config.Now(), c.backend.servers
	for i := range c.ops {
		op := &c.ops[i]
		op.Decision, op.Err = engine.Decision{}, nil
		if e := c.backend.fits(op); e != nil {
			op.Err = e
			continue
		}
		it := c.backend.newItem(i, op, now)
		sh := c.shareOf(it, servers[shard(it.key, len(servers))])
		sh.items = append(sh.items, it)
	}
}

// shareOf returns the share for an item: the one with its key; otherwise, for a check, the one with checks of that server; otherwise a
// new one.
func (c *call) shareOf(it *item, s *server) *share {
	var peeks *share
	for _, sh := range c.shares {
		if slices.ContainsFunc(sh.items, func(other *item) bool { return other.key == it.key }) {
			return sh
		}
		if sh.server == s && sh.items[0].peeks() {
			peeks = sh
		}
	}
	if peeks != nil && it.peeks() {
		return peeks
	}
	sh := &share{server: s, budget: c.budget, done: make(chan struct{})}
	c.shares = append(c.shares, sh)
	return sh
}

// send starts the exchanges. A share without a slot in time fails and sends nothing.
func (c *call) send(ctx context.Context) {
	waiting := make(map[*server]int)
	for _, sh := range c.shares {
		waiting[sh.server]++
	}
	for _, sh := range c.shares {
		report, e := sh.server.acquire(ctx, waiting[sh.server])
		waiting[sh.server]--
		if e != nil {
			fail(sh.items, e)
			close(sh.done)
			continue
		}
		go sh.run(report)
	}
}

// await waits for the shares until ctx ends, and copies their results into the ops.
func (c *call) await(ctx context.Context) {
	for _, sh := range c.shares {
		select {
		case <-sh.done:
		case <-ctx.Done():
		}
		select {
		case <-sh.done:
			for _, it := range sh.items {
				c.ops[it.at].Decision = it.result
				if it.err != nil {
					c.ops[it.at].Err = it.err
				}
			}
		default:
			sh.left.Store(errors.Is(ctx.Err(), context.DeadlineExceeded))
			for _, it := range sh.items {
				c.ops[it.at].Err = store.Unanswered(sh.server.name)
			}
		}
	}
}

// run executes the items, reports the outcome to the breaker, and returns the slot. The caller may give up in the meantime.
func (sh *share) run(report func(*remote.Error)) {
	defer close(sh.done)
	s, begun := sh.server, time.Now()
	e := sh.exchange(begun)
	took := time.Since(begun)
	switch {
	case e != nil && trips(e):
		report(e)
	case sh.left.Load() && remote.TooSlow(took, sh.budget):
		report(store.Slow(s.name))
	default:
		report(nil)
		s.pace.Done(begun, begun.Add(took), cap(s.slots)-len(s.slots), s.waiting.Load() > 0)
	}
	s.slots <- struct{}{}
	b := remote.Batch{Node: s.name, Ops: len(sh.items), Duration: took, Err: e}
	for _, it := range sh.items {
		if it.err != nil {
			b.Failed++
		}
	}
	s.backend.config.Observer.Batch(b)
}

// exchange executes the items until the server fails. It returns the server's error if there is one, otherwise the error of any item, or
// nil.
func (sh *share) exchange(begun time.Time) (worst *remote.Error) {
	s, n := sh.server, 1
	if !slices.ContainsFunc(sh.items, func(it *item) bool { return !it.peeks() }) {
		n = len(sh.items)
	}
	for rest := sh.items; len(rest) > 0; rest = rest[n:] {
		if e := s.execute(rest[:n]); e != nil && (worst == nil || trips(e)) {
			worst = e
		}
		if late := time.Since(begun) > s.client.Timeout; late || worst != nil && trips(worst) {
			fail(rest[n:], cmp.Or(worst, store.Slow(s.name)).NotSent())
			break
		}
	}
	return worst
}

// fail sets the error of items.
func fail(items []*item, e *remote.Error) {
	for _, it := range items {
		it.err = e
	}
}
