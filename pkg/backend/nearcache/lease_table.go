package nearcache

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Times of leases.
const (
	millisecond   engine.Micros = 1_000
	refillSpan                  = 500 * millisecond  // how long a refill should last
	grantTTL                    = 4 * refillSpan     // how long hits may be spent
	idleTimeout                 = 500 * millisecond  // of a key: after this long without a take its hits go back
	touchSpan                   = idleTimeout / 4    // how often a take keeps a key from being swept
	minRateSpan                 = 50 * millisecond   // the shortest span over which a rate is measured
	minWindowLeft               = 5 * millisecond    // nothing is leased in the last moment of a window
	refillBackoff               = 100 * millisecond  // before the next refill, after one that brought nothing or too much
	ruleBackoff                 = 1000 * millisecond // before the next refill, after a change of the rule, or if the store does not lease
)

// How many takes within one or two ticks make a key hot.
const (
	hotAuto   = 8
	hotForced = 2 // if the rule says how much to lease
)

// leases holds the leases of this replica. Shards spread the contention for locks.
type leases struct {
	store    backend.Backend
	now      func() engine.Micros
	shards   []leaseShard
	refunds  refundQueue
	outcomes outcomes
	resets   resets
	flights  flights
}

// leaseShard holds the leases of some keys.
type leaseShard struct {
	mu      sync.Mutex
	known   *simplelru.LRU[backend.Key, *entry] // keys that are hot
	hotKeys hotKeys
	limit   *engine.Limit // that of the entry added last; most keys share a few

	served, leased, spent, evicted uint64 // see [Stats]

	_ [64]byte // against false sharing with the next shard
}

// entry is what is known about a hot key. It is guarded by its shard's mu. What most takes need comes first and lies
// together: where many keys are warm, a take costs as much as the cache lines that it has to fetch.
type entry struct {
	counter
	touched   engine.Micros // last take, or up to touchSpan before it
	hits      uint64        // hits wanted since the time of since
	lastGrant uint64        // hits of the last grant
	remaining remaining     // what remains, for each hit of the lease
	runs      [2]run        // memory for remaining, as long as it suffices
	lease

	storeLeft      uint64        // hits that the store had left at the last answer
	windowEnds     engine.Micros // when the window of that answer ends; 0 if it had no window
	leftKnown      bool          // storeLeft is known
	since          engine.Micros // start of the measurement of hits
	noRefillBefore engine.Micros // no refill before this time
	wait           chan struct{} // closed when the refill under way ends; nil if there is none
}

// lesson is how the store's answer to an op updates the lease of its key.
type lesson uint8

const (
	nothing     lesson = iota
	takeLeft           // a take: the hits left are for leases
	withoutHeld        // the leased hits have to be added to the answer
	wasReset           // the lease is void
)

func newLeases(store backend.Backend, keys int, now func() engine.Micros) *leases {
	n := shardsFor(keys)
	ls := &leases{store: store, now: now, shards: make([]leaseShard, n), resets: make(resets, resetCounts)}
	ls.refunds.wake, ls.refunds.outcomes = make(chan struct{}, 1), &ls.outcomes
	ls.flights.slots = make(chan struct{}, maxFlights)
	for i := range ls.shards {
		sh := &ls.shards[i]
		known, err := simplelru.NewLRU(max(keys/n, 1), ls.evicted)
		if err != nil {
			panic("nearcache: a cache of at least one key was rejected: " + err.Error()) //nolint:forbidigo // the size is checked above
		}
		sh.known, sh.hotKeys = known, newHotKeys(hotKeyCounters)
	}
	return ls
}

// hotKeyCounters is how many counters of keys a shard has.
const hotKeyCounters = 1024

func (ls *leases) shard(hash uint64) *leaseShard { return &ls.shards[hash&uint64(len(ls.shards)-1)] }

// leasable returns how many hits of op's counter may be leased at most; 0 means none. Counters under
// envoyproxy/ratelimit's names are never leased: they are shared with its servers, and have no scripts.
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

// neverAdmitted reports whether op is a take that is rejected at any time, and changes nothing.
func neverAdmitted(op *backend.Op) bool {
	if !spends(op) || op.Penalty != nil {
		return false
	}
	for i := range op.Limits {
		if l := &op.Limits[i]; l.CountRefused || !l.Algorithm.Remembered() {
			return false
		}
	}
	return !passable(op.Limits, op.Take.Cost)
}

// visit is an op being answered from the leases. The shard is locked.
type visit struct {
	*leases

	shard    *leaseShard
	op       *backend.Op
	pending  *pending
	maxLease uint64 // hits of op's counter that may be leased; see leasable
	now      engine.Micros
}

// answer decides op from what is leased, or notes in p what to do with the store's answer. If waiting may help, p.wait
// is what to wait for. op may not wait if ops, the ops of the call, is nil, or if others of them have the same key,
// since it would be decided after them.
func (ls *leases) answer(op *backend.Op, p *pending, now engine.Micros, ops []backend.Op) action {
	v := &visit{ls, ls.shard(p.hash), op, p, leasable(op), now}
	if op.Take.Cost > v.maxLease && neverAdmitted(op) {
		return askStore // just for the texts and times of its rejection
	}
	sh := v.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	switch op.Mode {
	case backend.Reset, backend.ForceReset:
		ls.forget(sh, op.Key, p.hash)
		p.lesson = wasReset
		return askStore
	case backend.Refund, backend.Settle:
		if e, ok := sh.known.Peek(op.Key); ok {
			p.addLease(e)
		}
		return askStore
	case backend.Take, backend.Peek:
	}
	takes := spends(op)
	e, ok := sh.known.Peek(op.Key)
	if ok && (!e.sameRule(op) || v.maxLease == 0 && takes) {
		v.changeRule(e)
		return askStore
	}
	if !takes {
		return v.answerLook(e)
	}
	if v.maxLease == 0 || op.Take.Extra > 0 || op.Take.Count == 0 || !ls.flights.open.Load() {
		return askStore
	}
	if !ok {
		if e = v.addIfHot(); e == nil {
			return askStore
		}
	}
	v.touch(e)
	return v.answerTake(e, ops)
}

// touch keeps e from being swept. It does so once in a while, since moving an entry of a long list costs more than
// finding it.
func (v *visit) touch(e *entry) {
	if v.now-e.touched >= touchSpan {
		e.touched = v.now
		v.shard.known.Get(v.op.Key)
	}
}

// worthLease reports whether requests of op's cost are worth a lease.
func (v *visit) worthLease() bool { return v.op.Take.Cost <= v.maxLease/minLease }

// addIfHot counts a take of an unknown key, and adds an entry if the key is hot.
func (v *visit) addIfHot() *entry {
	if !v.worthLease() {
		return nil
	}
	count := v.shard.hotKeys.count(v.pending.hash, v.now)
	if count < hotForced || count < hotAuto && v.op.Lease == backend.LeaseAuto {
		return nil
	}
	e := &entry{
		counter: v.counter(), touched: v.now, since: v.now - 2*tick, hits: engine.Times(uint64(count), v.op.Take.Cost),
	}
	e.remaining = e.runs[:0]
	if v.shard.known.Add(v.op.Key, e) {
		v.shard.evicted++
	}
	return e
}

// counter returns op's counter, which has a single limit.
func (v *visit) counter() counter {
	if l := v.op.Limits[0]; v.shard.limit == nil || !v.shard.limit.Equal(l) {
		v.shard.limit = &l
	}
	return counter{key: v.op.Key, hash: v.pending.hash, limit: v.shard.limit}
}

// sameRule reports whether op is under the limit of e.
func (e *entry) sameRule(op *backend.Op) bool {
	return len(op.Limits) == 1 && e.limit.Equal(op.Limits[0])
}

// answerTake decides a take of a known key.
func (v *visit) answerTake(e *entry, ops []backend.Op) action {
	op, p, fits := v.op, v.pending, v.worthLease()
	hits := engine.Times(op.Take.Cost, op.Take.Count)
	if fits && ops != nil { // not again after it has waited
		e.hits += hits
	}
	var expired [2]grant
	e.lease, expired = e.expire(v.now)
	ended := expired[0].left + expired[1].left
	if ended > 0 {
		e.remaining.dropLowest(ended)
	}
	var from grant
	var ok bool
	if e.lease, from, ok = e.spend(hits, v.now); ok {
		op.Decision, op.Err, op.Origin = from.decide(op, e.remaining.takeHighest(hits)+hits, v.now), nil, backend.FromLease
		v.shard.served++
		v.shard.spent += hits
		if fits && e.mayAsk() && e.now.left <= e.lastGrant/4 {
			v.startRefill(e)
		}
		if ended > 0 {
			v.queueRefund(e.counter, expired[:]...)
		}
		return served
	}
	p.lesson = takeLeft
	if fits {
		v.startRefill(e)
	}
	if p.refill = e.wait; fits && p.refill != nil && hits <= v.maxLease && mayWait(ops, p.index) {
		v.queueRefund(e.counter, expired[:]...)
		p.wait = e.wait
		return wait
	}
	// If there are too few for this take, the store decides with all there are.
	var unspent [2]grant
	e.lease, unspent = e.empty()
	e.remaining = e.remaining[:0]
	v.refundBefore(e, expired[:])
	v.refundBefore(e, unspent[:])
	return askStore
}

// refundBefore has grants of e refunded in op's call, before op.
func (v *visit) refundBefore(e *entry, grants []grant) {
	p := v.pending
	for _, g := range grants {
		if b := (refund{e.counter, g}); g.left > 0 && !v.discard(&b, v.now) {
			p.use = rejectionEnds
			p.refunds = append(p.refunds, b)
		}
	}
}

// decide returns the decision for op, which found left hits, and spends hits of g.
func (g grant) decide(op *backend.Op, left uint64, now engine.Micros) engine.Decision {
	return engine.Decision{
		Admitted:   op.Take.Count,
		Left:       left,
		ResetAfter: time.Duration(max(g.resetsAt-now, 0)) * time.Microsecond,
		Window:     g.window,
	}
}

// answerLook answers a look that is covered by leased hits.
func (v *visit) answerLook(e *entry) action {
	if e == nil {
		return askStore
	}
	op := v.op
	hits := engine.Times(op.Take.Cost, op.Take.Count)
	if op.Take.Cost == 0 {
		hits = min(op.Take.Count, 1)
	}
	if _, from, ok := e.spend(hits, v.now); ok && hits > 0 {
		op.Decision, op.Err, op.Origin = from.decide(op, e.remaining.highest(), v.now), nil, backend.FromLease
		v.shard.served++
		return served
	}
	v.pending.addLease(e)
	if e.has(v.now) > 0 {
		v.pending.use = rejectionSkipped
	}
	return askStore
}

// addLease notes that the hits leased of e are to be added to the answer.
func (p *pending) addLease(e *entry) { p.lesson, p.refill, p.refills = withoutHeld, e.wait, e.refills }

// changeRule ends the lease of a key that came with another rule. Nothing is leased for a while then, in case rules
// alternate.
func (v *visit) changeRule(e *entry) {
	if !spends(v.op) {
		return // a look: an operator's, one of a request whose take comes next, or of one that takes nothing
	}
	var unspent [2]grant
	e.lease, unspent = e.end()
	v.refundBefore(e, unspent[:])
	if v.maxLease == 0 {
		v.shard.known.Remove(v.op.Key)
		return
	}
	*e = entry{lease: e.lease, wait: e.wait, counter: v.counter(), since: v.now, touched: v.now, noRefillBefore: v.now + ruleBackoff}
	e.remaining = e.runs[:0]
}

// forget drops what is known about a key, and its lease: after a reset there is nothing to refund hits to.
func (ls *leases) forget(sh *leaseShard, key backend.Key, hash uint64) {
	ls.resets.of(hash).Add(1)
	e, ok := sh.known.Peek(key)
	if !ok {
		return
	}
	var unspent [2]grant
	e.lease, unspent = e.end()
	ls.outcomes.reset.Add(unspent[0].left + unspent[1].left)
	sh.known.Remove(key)
}

// learn implements [part]. It adds leased hits to the answer.
func (ls *leases) learn(op *backend.Op, p *pending, asked, now engine.Micros) {
	if p.lesson == nothing {
		return
	}
	sh := ls.shard(p.hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if p.lesson == wasReset {
		ls.forget(sh, op.Key, p.hash)
		return
	}
	e, ok := sh.known.Peek(op.Key)
	if !ok || op.Err != nil || !e.sameRule(op) {
		return
	}
	if p.lesson == withoutHeld {
		e.add(op, p, e.has(now))
		return
	}
	d := &op.Decision
	spent := engine.Times(d.Admitted, op.Take.Cost)
	e.setStoreLeft(d, spent, asked)
	if spent > 0 && len(e.remaining) > 0 { // a refill has come in the meantime
		e.remaining.add(run{low: subtract(d.Left, spent), n: spent})
		d.Left = e.remaining.takeHighest(spent) + spent
	}
}

// add adds has leased hits to the store's answer.
func (e *entry) add(op *backend.Op, p *pending, has uint64) {
	d := &op.Decision
	if p.refill == nil && p.refills == e.refills { // what is leased was debited before
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
	if len(e.remaining) > 0 { // what a take would get
		d.Left = max(e.remaining.highest(), engine.Times(d.Admitted, op.Take.Cost))
	}
}

// setStoreLeft notes what the store has left after spent of the hits that it reported as left.
func (e *entry) setStoreLeft(d *engine.Decision, spent uint64, at engine.Micros) {
	e.storeLeft, e.leftKnown, e.windowEnds = subtract(d.Left, spent), true, 0
	if d.Window != 0 {
		e.windowEnds = at + micros(d.ResetAfter)
	}
}

// count adds the counts of ls to s.
func (ls *leases) count(s *Stats) {
	f := &ls.outcomes // first, so that nothing is counted as gone before it was leased
	s.Returned, s.Full, s.Ended, s.Reset, s.Failed = f.returned.Load(), f.full.Load(), f.ended.Load(), f.reset.Load(), f.failed.Load()
	for i := range ls.shards {
		sh := &ls.shards[i]
		sh.mu.Lock()
		s.Entries += sh.known.Len()
		s.Evictions += sh.evicted
		s.Hits += sh.served
		s.Leased += sh.leased
		s.Spent += sh.spent
		sh.mu.Unlock()
	}
	s.Unspent = s.Ended + s.Reset + s.Failed
	s.Held = s.Leased - s.Spent - s.Returned - s.Full - s.Unspent
}

// evicted refunds what is left of the lease of a key that is dropped. The shard must be locked.
func (ls *leases) evicted(_ backend.Key, e *entry) {
	var unspent [2]grant
	e.lease, unspent = e.end()
	ls.queueRefund(e.counter, unspent[:]...)
}
