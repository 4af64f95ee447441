package nearcache

import (
	"context"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// patience is how long a refill, or giving back a batch, may take if the store has no bound of its own; and how long
// giving back everything may take at the end.
const patience = time.Second

// refill is a refill under way.
type refill struct {
	key    backend.Key
	entry  *entry
	number uint32
	limits [1]engine.Limit
	wait   chan struct{} // closed when it ends
	cost   uint64
	count  uint64 // of requests with that cost
}

// refill begins a refill of e, if it is worth it.
func (v *visit) refill(e *entry) {
	op, now := v.op, v.now
	if e.wait != nil || !e.mayAsk() || now < e.calm || !e.known {
		return
	}
	span := horizon
	if e.whole != 0 {
		if now >= e.whole {
			e.left, e.whole = e.limits[0].Hits, 0
		} else if span = min(span, e.whole-now); span < lastMoment {
			return
		}
	}
	lasts := uint64(engine.MaxHits)
	if op.Lease == backend.LeaseAuto {
		lasts = uint64(min(float64(e.hits)*float64(span)/float64(max(now-e.since, shortest)), engine.MaxHits))
	}
	cost := op.Take.Cost
	hits := wants(v.most, e.left, lasts, cost)
	if hits == 0 || !v.flights.begin() {
		return
	}
	f := &refill{key: op.Key, entry: e, limits: e.limits, wait: make(chan struct{}), cost: cost, count: hits / cost}
	e.since, e.hits, e.wait = now, 0, f.wait
	e.lease, f.number = e.ask()
	go v.fetch(f) // with a deadline of its own: it does not belong to this caller alone
}

// fetch asks the store for the hits of f. [leases.flights] waits for it.
func (ls *leases) fetch(f *refill) {
	defer ls.flights.done()
	ops := []backend.Op{{
		Key: f.key, Limits: f.limits[:], Lease: backend.LeaseOff,
		Take: engine.Take{Cost: f.cost, Extra: f.count},
	}}
	n := note{hash: f.entry.hash}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	at := ls.now()
	if r := ls.refusals; r != nil {
		r.epoch(n.hash).ask(&ops[0], &n)
	}
	ls.store.Apply(ctx, ops)
	if r := ls.refusals; r != nil {
		r.learn(&ops[0], &n, at)
	}
	ls.land(f, &ops[0], at)
}

// land handles the store's answer to f, which it was sent at time at or later.
func (ls *leases) land(f *refill, op *backend.Op, at engine.Micros) {
	e, d := f.entry, &op.Decision
	sh := ls.shard(e.hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	defer close(f.wait)
	e.wait = nil
	hits := engine.Times(d.Admitted, f.cost)
	if op.Err != nil || hits == 0 {
		if e.lease = e.lose(f.number); op.Err == nil && d.Left >= f.cost {
			e.calm = ls.now() + changed // a store that does not lease
		} else {
			e.calm = ls.now() + pause
		}
		return
	}
	sh.stats.leased += hits
	keep := keeps(hits, d.Left)
	g := granted(d, keep, at, ttl)
	var ok bool
	if e.lease, ok = e.receive(f.number, g); !ok { // the lease has ended in the meantime
		sh.stats.unspent += hits
		return
	}
	e.told(d, keep, at)
	e.size = keep
	if g.left = hits - keep; g.left > 0 {
		ls.giveBack(sh, f.key, e, [2]grant{g})
		e.calm = ls.now() + pause
	}
}

// back is hits to give back to the store.
type back struct {
	key   backend.Key
	hash  uint64
	limit engine.Limit
	grant grant
}

// op returns the operation that gives b back.
func (b *back) op() backend.Op {
	return backend.Op{
		Key: b.key, Limits: engine.Limits{b.limit}, Mode: backend.Give, Lease: backend.LeaseOff,
		Take: engine.Take{Cost: b.grant.left, Count: 1, Window: b.grant.window},
	}
}

// late reports whether the window that b belongs to has ended, so that there is nothing to give it back to.
func (b *back) late(now engine.Micros) bool { return b.grant.window != 0 && now >= b.grant.reset }

// backs is the queue of hits that [leases.run] gives back.
type backs struct {
	mu             sync.Mutex
	all            []back
	returned, lost uint64        // hits, in total
	wake           chan struct{} // receives when something is queued
}

// maxBacks bounds the queue; what does not fit is lost.
const maxBacks = 4096

func (bs *backs) add(b back) bool {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if len(bs.all) >= maxBacks {
		return false
	}
	bs.all = append(bs.all, b)
	select {
	case bs.wake <- struct{}{}:
	default:
	}
	return true
}

// cut removes up to most of them from the queue.
func (bs *backs) cut(most int) []back {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	n := min(most, len(bs.all))
	cut := append([]back(nil), bs.all[:n]...)
	bs.all = append(bs.all[:0], bs.all[n:]...)
	return cut
}

// gone counts hits that were given back or, if err is not nil, lost on the way.
func (bs *backs) gone(hits uint64, err error) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if err != nil {
		bs.lost += hits
	} else {
		bs.returned += hits
	}
}

// How many keys' hits are given back in one call at most, and how often to look for keys that have cooled down.
const (
	maxGives = 128
	sweeps   = 100 * time.Millisecond
)

// run allows leases, and gives back those of keys that have cooled down, until ctx ends; then it gives back everything.
func (ls *leases) run(ctx context.Context) {
	ls.flights.set(true)
	ticker := time.NewTicker(sweeps)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ls.backs.wake:
		case <-ticker.C:
			ls.sweep()
		}
		if ctx.Err() == nil {
			ls.flush(ctx)
		}
	}
	ls.flights.set(false)
	ls.flights.wg.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	ls.flush(ctx)
	for i := range ls.shards {
		sh := &ls.shards[i]
		sh.mu.Lock()
		sh.known.Purge()
		sh.mu.Unlock()
		ls.flush(ctx)
	}
}

// sweep gives back the leases of keys that have had no take for a while.
func (ls *leases) sweep() {
	for i := range ls.shards {
		sh := &ls.shards[i]
		sh.mu.Lock()
		now := ls.now()
		for {
			_, e, ok := sh.known.GetOldest()
			if !ok || now-e.touched < cool || e.wait != nil {
				break
			}
			sh.known.RemoveOldest()
		}
		sh.mu.Unlock()
	}
}

// flush gives back everything in the queue.
func (ls *leases) flush(ctx context.Context) {
	for {
		cut := ls.backs.cut(maxGives)
		if len(cut) == 0 {
			return
		}
		ls.give(ctx, cut)
	}
}

// give gives cut back in one call.
func (ls *leases) give(ctx context.Context, cut []back) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	now := ls.now()
	ops, notes := make([]backend.Op, 0, len(cut)), make([]note, 0, len(cut))
	for i := range cut {
		b := &cut[i]
		if b.late(now) || ctx.Err() != nil {
			ls.backs.gone(b.grant.left, context.DeadlineExceeded)
			continue
		}
		n := note{hash: b.hash}
		ops, notes = append(ops, b.op()), append(notes, n)
		ls.lifts(&notes[len(notes)-1])
	}
	if len(ops) == 0 {
		return
	}
	ls.store.Apply(ctx, ops)
	for i := range ops {
		ls.lifts(&notes[i])
		ls.backs.gone(ops[i].Take.Cost, ops[i].Err)
	}
}

// lifts ends what is remembered about a key to which hits are given back.
func (ls *leases) lifts(n *note) {
	if r := ls.refusals; r != nil {
		r.epoch(n.hash).next()
	}
}
