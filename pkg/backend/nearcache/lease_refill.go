package nearcache

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// storeTimeout bounds a refill, a batch of refunds, and the final refunds, regardless of the store's own bounds.
const storeTimeout = time.Second

// maxFlights is the maximum number of concurrent refills.
const maxFlights = 256

// refill is a refill in progress.
type refill struct {
	counter // as requested: the rule of entry may change
	entry   *entry
	number  uint32 // number of the lease's refill
	resets  uint32 // count of resets of key when the refill began; see [resets]
	cost    uint64
	count   uint64 // number of requests of that cost
}

// startRefill begins a refill of the entry if it is worthwhile.
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
	// The refill has its own deadline, because other callers use it too.
	go v.fetch(&refill{e.counter, e, e.asked, v.resets.of(e.hash).Load(), cost, hits / cost})
}

// fetch requests the hits of f from the store.
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

// refillArrived handles the store's answer to f, which was sent at the time at or later. It refunds hits that the lease does not accept.
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
		if op.Err == nil && d.Left >= f.cost { // the store does not support leases
			e.noRefillBefore = now + ruleBackoff
		}
		return
	}
	sh.leased += hits
	if f.resets != ls.resets.of(f.hash).Load() { // the reset may have erased the debit
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

// sweepInterval is the interval of checks for idle keys and for hits that could not be refunded before.
const sweepInterval = 100 * time.Millisecond

// run enables leases and refunds those of idle keys until ctx ends. Then it refunds everything.
func (ls *leases) run(ctx context.Context) {
	ls.open.Store(true)
	context.AfterFunc(ctx, func() { ls.open.Store(false) }) // immediately, even during a refund
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
	for range maxFlights { // waits for the refills in progress; no new one begins
		ls.flights <- struct{}{}
	}
	for i := range ls.shards {
		sh := &ls.shards[i]
		sh.mu.Lock()
		sh.hot.Purge()
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

// sweep refunds the leases of idle keys.
func (ls *leases) sweep() {
	for i := range ls.shards {
		sh := &ls.shards[i]
		sh.mu.Lock()
		now := ls.now()
		for {
			_, e, ok := sh.hot.GetOldest()
			if !ok || now-e.touched < idleTimeout || e.wait != nil {
				break
			}
			sh.hot.RemoveOldest()
		}
		sh.mu.Unlock()
	}
}
