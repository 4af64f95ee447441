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
	ends    time.Time // the caller's time
	budget  time.Duration
}

// share is the part of a call for one server, whose items are sent one after the other: operations on one counter, or checks.
type share struct {
	server *server
	items  []*item
	budget time.Duration // of the caller
	done   chan struct{} // closed when all items are decided
	left   atomic.Bool   // the caller has given up because its time was over
}

// plan turns ops into items and assigns them to shares.
func (c *call) plan(to *fleet) {
	now := c.backend.config.Now()
	for i := range c.ops {
		op := &c.ops[i]
		op.Decision, op.Err = engine.Decision{}, nil
		if e := c.backend.fits(op); e != nil {
			op.Err = e
			continue
		}
		it := c.backend.newItem(i, op, now)
		sh := c.shareOf(it, to.servers[shard(it.key, len(to.servers))])
		sh.items = append(sh.items, it)
	}
}

// shareOf returns the share of it: the one with its key or, if it is a check, one of checks of the same server, or else a new one.
func (c *call) shareOf(it *item, s *server) *share {
	var looks *share
	for _, sh := range c.shares {
		if slices.ContainsFunc(sh.items, func(other *item) bool { return other.key == it.key }) {
			return sh
		}
		if sh.server == s && sh.items[0].looks() {
			looks = sh
		}
	}
	if looks != nil && it.looks() {
		return looks
	}
	sh := &share{server: s, budget: c.budget, done: make(chan struct{})}
	c.shares = append(c.shares, sh)
	return sh
}

// send begins with the shares. One that gets no slot in time sends nothing.
func (c *call) send(ctx context.Context) {
	left := make(map[*server]int)
	for _, sh := range c.shares {
		left[sh.server]++
	}
	for _, sh := range c.shares {
		e := sh.server.acquire(ctx, left[sh.server], time.Until(c.ends))
		left[sh.server]--
		if e != nil {
			sh.fail(e)
			close(sh.done)
			continue
		}
		go sh.run()
	}
}

// await waits for the shares as long as the caller can, and fills in the results of the ops.
func (c *call) await(ctx context.Context) {
	enough := time.NewTimer(time.Until(c.ends))
	defer enough.Stop()
	late := false
	for _, sh := range c.shares {
		if !late {
			select {
			case <-sh.done:
			case <-sh.server.hush():
			case <-enough.C:
				late = true
				c.backend.lag.Note(time.Since(c.ends))
			case <-ctx.Done():
				late = true
			}
		}
		select {
		case <-sh.done:
			for _, it := range sh.items {
				if it.err != nil {
					c.ops[it.at].Err = it.err
				} else {
					c.ops[it.at].Decision = it.result
				}
			}
		default:
			sh.left.Store(ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded))
			e := store.Unanswered(sh.server.name)
			for _, it := range sh.items {
				c.ops[it.at].Err = e
			}
		}
	}
}

// run carries out the items, with a slot of the server, which it releases. The caller may give up in the meantime.
func (sh *share) run() {
	defer close(sh.done)
	s := sh.server
	begun := time.Now()
	tell, e := s.breaker.Begin()
	if e != nil {
		sh.fail(e)
		tell = func(*remote.Error) {}
	} else {
		e = sh.exchange(begun)
	}
	took := time.Since(begun)
	switch {
	case e != nil && trips(e):
		tell(e)
	case sh.left.Load() && remote.TooSlow(took, sh.budget):
		tell(store.Slow(s.name))
	default:
		tell(nil)
		s.pace.Done(begun, begun.Add(took), s.inUse(), s.waiting.Load() > 0)
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

// exchange carries out the items, and returns the error that says most about the server, or nil.
func (sh *share) exchange(begun time.Time) (worst *remote.Error) {
	s := sh.server
	for rest := sh.items; len(rest) > 0; {
		n := 1
		for rest[0].looks() && n < len(rest) && rest[n].looks() {
			n++
		}
		if e := s.carryOut(rest[:n]); e != nil && (worst == nil || trips(e)) {
			worst = e
		}
		rest = rest[n:]
		if late := time.Since(begun) > s.client.Timeout; late || worst != nil && trips(worst) {
			e := cmp.Or(worst, store.Slow(s.name)).NotSent()
			for _, it := range rest {
				it.err = e
			}
			break
		}
	}
	return worst
}

// fail fails all items.
func (sh *share) fail(e *remote.Error) {
	for _, it := range sh.items {
		it.err = e
	}
}
