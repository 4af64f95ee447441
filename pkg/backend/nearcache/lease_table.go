package nearcache

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Times of leases.
const (
	millisecond   engine.Micros = 1_000
	refillSpan                  = 500 * millisecond  // duration for which a refill should last
	grantTTL                    = 4 * refillSpan     // duration for which hits may be spent
	idleTimeout                 = 500 * millisecond  // duration without a take after which a key's hits are refunded
	touchSpan                   = idleTimeout / 4    // interval at which takes protect a key from the sweep
	minRateSpan                 = 50 * millisecond   // minimum duration for measuring a rate
	minWindowLeft               = 5 * millisecond    // minimum remaining time of a window for a refill
	refillBackoff               = 100 * millisecond  // delay of the next refill after one that yielded nothing or too much
	ruleBackoff                 = 1000 * millisecond // delay after a change of the rule, or if the store does not support leases
)

// Numbers of takes in two ticks that make a key hot.
const (
	hotAuto   = 8
	hotForced = 2 // if the rule specifies the lease
)

// leases holds the leases of this replica. Shards reduce lock contention.
type leases struct {
	store   backend.Backend
	now     func() engine.Micros
	shards  []leaseShard
	refunds refundQueue
	resets  resets
	open    atomic.Bool   // refills are allowed
	flights chan struct{} // holds one element per refill in progress
}

// leaseShard holds the leases of some keys.
type leaseShard struct {
	mu      sync.Mutex
	hot     *simplelru.LRU[backend.Key, *entry] // hot keys
	hotKeys hotKeys
	limit   *engine.Limit // limit of the entry added last; most keys share a few

	served, leased, spent, evicted uint64 // see [Stats]

	_ [64]byte // against false sharing with the next shard
}

// entry is the state of a hot key, guarded by its shard's mu. The fields that most takes need are adjacent at the start: with many warm
// keys, the cost of a take is the number of cache lines that it fetches.
type entry struct {
	counter
	touched   engine.Micros // last take, or up to touchSpan before it
	hits      uint64        // hits requested since the time since
	lastGrant uint64        // hits of the last grant
	remaining remaining     // numbers to report, one for each hit of the lease
	runs      [2]run        // initial memory of remaining
	lease

	storeLeft      uint64        // hits that the store had left at the last answer
	windowEnds     engine.Micros // end of the window of that answer; 0 without a window
	leftKnown      bool          // storeLeft is known
	since          engine.Micros // start of the measurement of hits
	noRefillBefore engine.Micros // no refill before this time
	wait           chan struct{} // closed when the refill in progress ends; nil if there is none
}

func newLeases(store backend.Backend, keys int, now func() engine.Micros) *leases {
	n := shardsFor(keys)
	ls := &leases{
		store: store, now: now, shards: make([]leaseShard, n), resets: make(resets, resetCounts),
		refunds: refundQueue{wake: make(chan struct{}, 1)}, flights: make(chan struct{}, maxFlights),
	}
	for i := range ls.shards {
		sh := &ls.shards[i]
		hot, err := simplelru.NewLRU(max(keys/n, 1), ls.evicted)
		if err != nil {
			panic("nearcache: a cache of at least one key was rejected: " + err.Error()) //nolint:forbidigo // the size is checked above
		}
		sh.hot, sh.hotKeys = hot, newHotKeys(hotKeyCounters)
	}
	return ls
}

// hotKeyCounters is the number of key counters of a shard.
const hotKeyCounters = 1024

func (ls *leases) shard(hash uint64) *leaseShard { return &ls.shards[hash&uint64(len(ls.shards)-1)] }

// leasable returns the maximum number of hits of op's counter that may be leased; 0 means none. Counters with envoyproxy/ratelimit's
// names are never leased, because its servers share them and no scripts apply to them.
func leasable(op *backend.Op) uint64 {
	if len(op.Limits) != 1 || op.Penalty != nil || op.Reserve != nil || op.Lease < 0 || op.Take.Owner != "" || len(op.Name) > 0 {
		return 0
	}
	l := &op.Limits[0]
	if l.Unleased() != "" {
		return 0
	}
	return maxLease(l, op.Lease)
}

// spends reports whether op is a take that may spend hits.
func spends(op *backend.Op) bool { return op.Mode == backend.Take && op.Take.Cost > 0 }

// neverAdmitted reports whether op is a take that is always rejected and changes nothing.
func neverAdmitted(op *backend.Op) bool {
	if !spends(op) || op.Penalty != nil {
		return false
	}
	changes := func(l engine.Limit) bool { return l.CountRefused || !l.Algorithm.Remembered() }
	return !slices.ContainsFunc(op.Limits, changes) && !passable(op.Limits, op.Take.Cost)
}

// visit is an op in progress on its locked shard.
type visit struct {
	*leases

	shard    *leaseShard
	entry    *entry // of op's key; nil if it is not hot
	op       *backend.Op
	pending  *pending
	maxLease uint64 // maximum lease of op's counter, in hits; see leasable
	now      engine.Micros
}

// answer decides op from leased hits, or prepares p for the store, or sets p.wait.
func (ls *leases) answer(op *backend.Op, p *pending, now engine.Micros) verdict {
	most, sh, takes := leasable(op), ls.shard(p.hash), spends(op)
	if op.Take.Cost > most && neverAdmitted(op) {
		return askStore // the store only provides the texts and times of the rejection
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e, ok := sh.hot.Peek(op.Key)
	v := &visit{ls, sh, e, op, p, most, now}
	switch {
	case op.Mode.Resets():
		ls.forget(sh, op.Key, p.hash)
	case op.Mode != backend.Take && op.Mode != backend.Peek:
		v.addLease()
	case ok && takes && (most == 0 || !e.sameRule(op)):
		v.changeRule()
	case ok && !takes && e.sameRule(op):
		return v.answerLook()
	case !takes || most == 0 || op.Take.Extra > 0 || op.Take.Count == 0 || !ls.open.Load():
	case ok || v.addIfHot():
		if now-v.entry.touched >= touchSpan { // not always, because moving an entry in a long list costs more than finding it
			v.entry.touched = now
			sh.hot.Get(op.Key)
		}
		return v.answerTake()
	}
	return askStore
}

// worthLease reports whether requests of op's cost are worth a lease.
func (v *visit) worthLease() bool { return v.op.Take.Cost <= v.maxLease/minLease }

// addIfHot counts a take of a key without an entry. If the key is hot, it adds an entry and returns true.
func (v *visit) addIfHot() bool {
	if !v.worthLease() {
		return false
	}
	count := v.shard.hotKeys.count(v.pending.hash, v.now)
	if count < hotForced || count < hotAuto && v.op.Lease == backend.LeaseAuto {
		return false
	}
	e := &entry{
		counter: v.counter(), touched: v.now, since: v.now - 2*tick, hits: engine.Times(uint64(count), v.op.Take.Cost),
	}
	e.remaining = e.runs[:0]
	if v.shard.hot.Add(v.op.Key, e) {
		v.shard.evicted++
	}
	v.entry = e
	return true
}

// counter returns op's counter, which has a single limit.
func (v *visit) counter() counter {
	if l := v.op.Limits[0]; v.shard.limit == nil || !v.shard.limit.Equal(l) {
		v.shard.limit = &l
	}
	return counter{key: v.op.Key, hash: v.pending.hash, limit: v.shard.limit}
}

// sameRule reports whether op has the limit of e.
func (e *entry) sameRule(op *backend.Op) bool {
	return len(op.Limits) == 1 && e.limit.Equal(op.Limits[0])
}

// answerTake decides a take of a key with an entry.
func (v *visit) answerTake() verdict {
	e, op, p, fits := v.entry, v.op, v.pending, v.worthLease()
	hits := engine.Times(op.Take.Cost, op.Take.Count)
	if fits && !p.call.waited {
		e.hits += hits
	}
	var expired grant
	e.lease, expired = e.expire(v.now)
	e.remaining.dropLowest(expired.left)
	if left, ok := e.spend(hits, v.now); ok {
		e.lease = left
		v.serve(e.remaining.takeHighest(hits) + hits)
		v.shard.spent += hits
		if fits && e.held.left <= e.lastGrant/4 {
			v.startRefill()
		}
		v.queueRefund(e.counter, expired)
		return decided
	}
	if fits {
		v.startRefill()
	}
	p.hasEntry, p.wait = true, e.wait
	if fits && e.wait != nil && hits <= v.maxLease && p.mayWait() {
		v.queueRefund(e.counter, expired)
		return later
	}
	// The lease has too few hits for this take, so the store decides after they are refunded.
	v.refundBefore(expired)
	e.lease, expired = e.empty()
	v.refundBefore(expired)
	e.remaining = e.remaining[:0]
	return askStore
}

// refundBefore refunds g in op's call, before op.
func (v *visit) refundBefore(g grant) {
	if r := (refund{v.entry.counter, g}); g.left > 0 && !v.discard(&r, v.now) {
		v.pending.use = rejectionEnds
		v.pending.call.refunds = append(v.pending.call.refunds, r)
	}
}

// serve decides op from the lease. left is the number of hits before op.
func (v *visit) serve(left uint64) {
	op, g := v.op, &v.entry.held
	op.Err, op.Origin = nil, backend.FromLease
	op.Decision = engine.Decision{
		Admitted:   op.Take.Count,
		Left:       left,
		ResetAfter: time.Duration(max(g.resetsAt-v.now, 0)) * time.Microsecond,
		Window:     g.window,
	}
	v.shard.served++
}

// answerLook answers a check of a key with an entry if leased hits cover it.
func (v *visit) answerLook() verdict {
	e, t := v.entry, v.op.Take
	hits := engine.Times(t.Cost, t.Count)
	if t.Cost == 0 {
		hits = min(t.Count, 1)
	}
	if hits > 0 && hits <= e.has(v.now) {
		v.serve(e.remaining.highest())
		return decided
	}
	v.addLease()
	if e.has(v.now) > 0 {
		v.pending.use = rejectionSkipped
	}
	return askStore
}

// addLease prepares p so that observe adds leased hits to the store's answer.
func (v *visit) addLease() {
	if e, p := v.entry, v.pending; e != nil {
		p.hasEntry, p.wait, p.refills = true, e.wait, e.refills
	}
}

// changeRule ends the lease of a key after a take under another rule. It delays the next lease, in case rules alternate.
func (v *visit) changeRule() {
	e := v.entry
	var unspent grant
	e.lease, unspent = e.end()
	v.refundBefore(unspent)
	if v.maxLease == 0 {
		v.shard.hot.Remove(v.op.Key)
		return
	}
	*e = entry{lease: e.lease, wait: e.wait, counter: v.counter(), since: v.now, touched: v.now, noRefillBefore: v.now + ruleBackoff}
	e.remaining = e.runs[:0]
}

// forget drops the entry of a key with its lease. Its hits are not refunded, because a reset has erased their debit.
func (ls *leases) forget(sh *leaseShard, key backend.Key, hash uint64) {
	ls.resets.of(hash).Add(1)
	e, ok := sh.hot.Peek(key)
	if !ok {
		return
	}
	var unspent grant
	e.lease, unspent = e.end()
	ls.refunds.reset.Add(unspent.left)
	sh.hot.Remove(key)
}

// observe records the hits that the store has left after its answer to op, and adds leased hits to the answer. The store was asked at the
// time asked or later.
func (ls *leases) observe(op *backend.Op, p *pending, asked engine.Micros) {
	if !p.hasEntry && !op.Mode.Resets() {
		return
	}
	sh := ls.shard(p.hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e, ok := sh.hot.Peek(op.Key)
	d := &op.Decision
	switch spent := engine.Times(d.Admitted, op.Take.Cost); {
	case op.Mode.Resets():
		ls.forget(sh, op.Key, p.hash)
	case !ok || op.Err != nil || !e.sameRule(op):
	case !spends(op):
		e.add(op, p, e.has(ls.now()))
	default:
		e.setStoreLeft(d, spent, asked)
		if spent > 0 && len(e.remaining) > 0 { // a refill has arrived in the meantime
			e.remaining.add(run{low: subtract(d.Left, spent), n: spent})
			d.Left = e.remaining.takeHighest(spent) + spent
		}
	}
}

// add adds has leased hits to the store's answer.
func (e *entry) add(op *backend.Op, p *pending, has uint64) {
	d := &op.Decision
	if p.wait == nil && p.refills == e.refills { // leased hits were debited before
		e.remaining.renumber(d.Left)
	}
	d.Left = min(d.Left+has, e.limit.Capacity())
	if op.Mode == backend.Refund {
		return
	}
	if d.Admitted < op.Take.Count {
		admitted := op.Take.Count
		if op.Take.Cost > 0 {
			admitted = min(admitted, d.Left/op.Take.Cost)
		} else if d.Left == 0 {
			admitted = 0
		}
		if d.Admitted = max(d.Admitted, admitted); d.Admitted == op.Take.Count {
			d.RetryAfter = 0
		}
	}
	if len(e.remaining) > 0 { // the number that a take would report
		d.Left = max(e.remaining.highest(), engine.Times(d.Admitted, op.Take.Cost))
	}
}

// setStoreLeft records the hits left in the store after spent of those that it reported as left.
func (e *entry) setStoreLeft(d *engine.Decision, spent uint64, at engine.Micros) {
	e.storeLeft, e.leftKnown, e.windowEnds = subtract(d.Left, spent), true, 0
	if d.Window != 0 {
		e.windowEnds = at + micros(d.ResetAfter)
	}
}

// count adds the statistics of ls to s.
func (ls *leases) count(s *Stats) {
	f := &ls.refunds // first, so that no hit is counted as refunded before it is counted as leased
	s.Returned, s.Full, s.Ended, s.Reset, s.Failed = f.returned.Load(), f.tooMany.Load(), f.ended.Load(), f.reset.Load(), f.failed.Load()
	for i := range ls.shards {
		sh := &ls.shards[i]
		sh.mu.Lock()
		s.Entries += sh.hot.Len()
		s.Evictions += sh.evicted
		s.Hits += sh.served
		s.Leased += sh.leased
		s.Spent += sh.spent
		sh.mu.Unlock()
	}
	s.Unspent = s.Ended + s.Reset + s.Failed
	s.Held = s.Leased - s.Spent - s.Returned - s.Full - s.Unspent
}

// evicted refunds the unspent hits of a dropped key. The shard must be locked.
func (ls *leases) evicted(_ backend.Key, e *entry) {
	var unspent grant
	e.lease, unspent = e.end()
	ls.queueRefund(e.counter, unspent)
}
