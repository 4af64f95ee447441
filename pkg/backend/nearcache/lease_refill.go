package nearcache

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// storeTimeout is how long a refill, or refunding a batch, may take at most, whatever bound the store has of its own; and how
// long refunding everything may take at the end.
const storeTimeout = time.Second

// maxFlights is how many refills may be in progress at once.
const maxFlights = 256

// refill is a refill in progress.
type refill struct {
	counter // as it was asked for: the rule of entry may change
	entry   *entry
	number  uint32 // of the refill of the lease
	resets  uint32 // of key before it began; see [resets]
	cost    uint64
	count   uint64 // of requests with that cost
}

// startRefill begins a refill of the entry, if it is worth it.
func (v *visit) startRefill() {
	e, op, now := v.entry, v.op, v.now
	if e.wait != nil || now < e.noRefillBefore || !e.leftKnown {
		return
	}
	span := refillSpan
	if e.windowEnds != 0 {
		if now >= e.windowEnds {
			e.storeLeft, e.windowEnds = e.limit.Capacity(), 0
		} else if span = min(span, e.windowEnds-now); span < minWindowLeft {
			return
		}
	}
	lasts := uint64(engine.MaxHits)
	if op.Lease == backend.LeaseAuto {
		lasts = uint64(min(float64(e.hits)*float64(span)/float64(max(now-e.since, minRateSpan)), engine.MaxHits))
	}
	cost := op.Take.Cost
	hits := refillSize(v.maxLease, e.storeLeft, lasts, cost)
	if hits == 0 || v.refunds.full() || !v.open.Load() {
		return
	}
	select {
	case v.flights <- struct{}{}:
	default:
		return
	}
	e.since, e.hits, e.wait = now, 0, make(chan struct{})
	e.lease = e.ask()
	// It has a deadline of its own: it does not belong to this caller alone.
	go v.fetch(&refill{e.counter, e, e.asked, v.resets.of(e.hash).Load(), cost, hits / cost})
}

// fetch asks the store for the hits of f.
func (ls *leases) fetch(f *refill) {
	defer func() { <-ls.flights }()
	ops := []backend.Op{{
		Key: f.key, Limits: engine.Limits{*f.limit}, Lease: backend.LeaseOff,
		Take: engine.Take{Cost: f.cost, Extra: f.count},
	}}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	at := ls.now()
	ls.store.Apply(ctx, ops)
	ls.refillArrived(f, &ops[0], at)
}

// refillArrived handles the store's answer to f, which it was sent at time at or later. What the lease does not take goes
// back.
func (ls *leases) refillArrived(f *refill, op *backend.Op, at engine.Micros) {
	e, d := f.entry, &op.Decision
	sh := ls.shard(f.hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	close(e.wait)
	e.wait = nil
	now, hits := ls.now(), engine.Times(d.Admitted, f.cost)
	if op.Err != nil || hits == 0 {
		e.lease, e.noRefillBefore = e.giveUp(f.number), now+refillBackoff
		if op.Err == nil && d.Left >= f.cost { // a store that does not lease
			e.noRefillBefore = now + ruleBackoff
		}
		return
	}
	sh.leased += hits
	if f.resets != ls.resets.of(f.hash).Load() { // the store may have forgotten that it debited them
		ls.refunds.reset.Add(hits)
		e.lease = e.giveUp(f.number)
		return
	}
	keep := keepable(hits, d.Left)
	g := newGrant(d, keep, at, now, grantTTL)
	g.resets = f.resets
	surplus, taken := g, e.asked == f.number
	surplus.left = hits - keep
	var stale grant
	e.lease, stale = e.receive(f.number, g)
	ls.queueRefund(f.counter, stale)
	ls.queueRefund(f.counter, surplus)
	if !taken { // the lease has ended in the meantime
		return
	}
	low := subtract(d.Left, keep)
	e.remaining.dropLowest(stale.left)
	e.remaining.renumber(low + keep)
	e.remaining.add(run{low, keep})
	e.setStoreLeft(d, keep, at)
	if e.lastGrant = keep; surplus.left > 0 {
		e.noRefillBefore = now + refillBackoff
	}
}

// sweepInterval is how often to look for keys that are idle, and for hits that could not be refunded before.
const sweepInterval = 100 * time.Millisecond

// run allows leases, and refunds those of idle keys, until ctx ends; then it refunds everything.
func (ls *leases) run(ctx context.Context) {
	ls.open.Store(true)
	context.AfterFunc(ctx, func() { ls.open.Store(false) }) // at once, although something may be on its way back
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ls.refunds.wake:
		case <-ticker.C:
			ls.sweep()
		}
		if ctx.Err() == nil {
			ls.flush(ctx)
		}
	}
	ls.open.Store(false)
	for range maxFlights { // waits for the refills in progress; none begins afterwards
		ls.flights <- struct{}{}
	}
	for i := range ls.shards {
		sh := &ls.shards[i]
		sh.mu.Lock()
		sh.known.Purge()
		sh.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	for !ls.flush(ctx) && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	ls.refunds.close()
}

// sweep refunds the leases of keys that have had no take for a while.
func (ls *leases) sweep() {
	for i := range ls.shards {
		sh := &ls.shards[i]
		sh.mu.Lock()
		now := ls.now()
		for {
			_, e, ok := sh.known.GetOldest()
			if !ok || now-e.touched < idleTimeout || e.wait != nil {
				break
			}
			sh.known.RemoveOldest()
		}
		sh.mu.Unlock()
	}
}
