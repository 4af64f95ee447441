package nearcache

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Times of leases.
const (
	millisecond engine.Micros = 1_000
	horizon                   = 500 * millisecond // how long a refill should last
	ttl                       = 4 * horizon       // of a grant
	cool                      = 500 * millisecond // hits go back after this long without a take
	shortest                  = 50 * millisecond  // the shortest span over which a rate is measured
	lastMoment                = 5 * millisecond   // of a window, in which nothing more is leased
	pause                     = 100 * millisecond // before the next refill, after one that brought nothing
	changed                   = 1000 * millisecond
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
	refusals *refusals // of the same keys; nil if refusals are not remembered
	mask     uint64
	shards   []leaseShard
	backs    backs
	flights  flights
}

// leaseShard holds the leases of some keys.
type leaseShard struct {
	mu    sync.Mutex
	known *simplelru.LRU[backend.Key, *entry] // keys that are hot
	heat  heat
	stats leaseStats

	_ [64]byte // against false sharing with the next shard
}

type leaseStats struct {
	served, leased, spent, unspent, evicted uint64
}

// entry is what is known about a hot key. It is guarded by its shard's mu.
type entry struct {
	lease
	hash   uint64
	limits [1]engine.Limit
	size   uint64        // hits of the last grant
	left   uint64        // hits that the store had left at the last answer
	whole  engine.Micros // when the window of that answer ends; 0 if it had no window
	known  bool          // left is known

	since, touched engine.Micros // start of the measurement of hits; last take
	hits           uint64        // hits wanted since then
	calm           engine.Micros // no refill before this time
	wait           chan struct{} // closed when the refill under way ends; nil if there is none
}

// verdict says what to do with an op.
type verdict uint8

const (
	asks   verdict = iota // the store has to be asked
	served                // decided
	waits                 // a refill or renewal under way may serve it
)

func newLeases(store backend.Backend, keys int, now func() engine.Micros, r *refusals) *leases {
	n := shardsFor(keys)
	ls := &leases{store: store, now: now, refusals: r, mask: uint64(n - 1), shards: make([]leaseShard, n)}
	ls.backs.wake = make(chan struct{}, 1)
	for i := range ls.shards {
		sh := &ls.shards[i]
		known, err := simplelru.NewLRU(max(keys/n, 1), func(k backend.Key, e *entry) { ls.evicted(sh, k, e) })
		if err != nil {
			panic("nearcache: a cache of at least one key was refused: " + err.Error()) //nolint:forbidigo // the size is checked above
		}
		sh.known, sh.heat = known, newHeat(heatPlaces)
	}
	return ls
}

// heatPlaces is how many places a shard has for counting keys.
const heatPlaces = 1024

func (ls *leases) shard(hash uint64) *leaseShard { return &ls.shards[hash&ls.mask] }

// leasable returns how many hits of op's counter may be leased at most; 0 means none. Counters under
// envoyproxy/ratelimit's names are never leased: they are shared with its servers, and have no scripts.
func leasable(op *backend.Op) uint64 {
	if len(op.Limits) != 1 || op.Penalty != nil || op.Lease < 0 || op.Take.Owner != "" || len(op.Name) > 0 {
		return 0
	}
	l := &op.Limits[0]
	if l.Listed || l.Debt > 0 || l.Algorithm != engine.FixedWindow && l.Algorithm != engine.TokenBucket {
		return 0
	}
	return most(l, op.Lease, max(op.Take.Cost, 1))
}

// visit is an op being answered from the leases. The shard is locked.
type visit struct {
	*leases

	shard *leaseShard
	op    *backend.Op
	note  *note
	most  uint64 // hits of op's counter that may be leased; see leasable
	now   engine.Micros
}

// answer decides op from what is leased, or notes in n what to do with the store's answer. If waiting may help, n.wait
// is what to wait for. op may not wait if ops, the ops of the call, is nil, or if others of them have the same key,
// since it would be decided after them.
func (ls *leases) answer(op *backend.Op, n *note, now engine.Micros, ops []backend.Op) verdict {
	sh := ls.shard(n.hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e, ok := sh.known.Get(op.Key)
	switch op.Mode {
	case backend.Reset:
		if ok {
			ls.forget(sh, op.Key, e)
		}
		n.resets = true
		return asks
	case backend.Give:
		n.adds = ok
		return asks
	case backend.Take, backend.Look:
	}
	v := &visit{ls, sh, op, n, leasable(op), now}
	if ok && (len(op.Limits) != 1 || !e.limits[0].Equal(op.Limits[0]) || v.most == 0 && op.Mode == backend.Take) {
		v.change(e)
		return asks
	}
	if op.Mode == backend.Look || op.Take.Cost == 0 {
		return v.look(e)
	}
	if v.most == 0 || op.Take.Extra > 0 || op.Take.Count == 0 || !ls.flights.open.Load() {
		return asks
	}
	if !ok {
		if e = v.meet(); e == nil {
			return asks
		}
	}
	return v.take(e, ops)
}

// meet counts a take of an unknown key, and adds an entry if the key is hot.
func (v *visit) meet() *entry {
	count := v.shard.heat.touch(v.note.hash, v.now)
	if count < hotForced || count < hotAuto && v.op.Lease == backend.LeaseAuto {
		return nil
	}
	e := &entry{
		hash: v.note.hash, limits: [1]engine.Limit{v.op.Limits[0]}, since: v.now - 2*tick, hits: engine.Times(uint64(count), v.op.Take.Cost),
	}
	if v.shard.known.Add(v.op.Key, e) {
		v.shard.stats.evicted++
	}
	return e
}

// take decides a take of a known key.
func (v *visit) take(e *entry, ops []backend.Op) verdict {
	op, n := v.op, v.note
	hits := engine.Times(op.Take.Cost, op.Take.Count)
	if e.touched = v.now; !n.counted {
		e.hits, n.counted = e.hits+hits, true
	}
	var over [2]grant
	e.lease, over = e.expire(v.now)
	v.giveBack(v.shard, op.Key, e, over)
	var from grant
	var ok bool
	if e.lease, from, ok = e.spend(hits, v.now); ok {
		op.Decision, op.Err, op.Remembered = from.decide(op, v.now), nil, false
		v.shard.stats.served++
		v.shard.stats.spent += hits
		if e.mayAsk() && e.now.left <= e.size/4 {
			v.refill(e)
		}
		return served
	}
	n.learns = true
	if v.refill(e); e.wait != nil && hits <= v.most && ops != nil && alone(ops, n.index) {
		n.wait = e.wait
		return waits
	}
	if e.has(v.now) > 0 { // too few for this take: let the store decide with all hits there are
		n.ends, n.holds = true, true
		n.back = &returning{limit: e.limits[0]}
		e.lease, n.back.grants = e.empty()
	}
	return asks
}

// decide returns the decision for op, which spends hits of g.
func (g grant) decide(op *backend.Op, now engine.Micros) engine.Decision {
	return engine.Decision{
		Admitted:   op.Take.Count,
		Left:       g.rest + g.left,
		ResetAfter: time.Duration(max(g.reset-now, 0)) * time.Microsecond,
		Window:     g.window,
	}
}

// look answers a look that is covered by leased hits.
func (v *visit) look(e *entry) verdict {
	if e == nil {
		return asks
	}
	op := v.op
	hits := engine.Times(op.Take.Cost, op.Take.Count)
	if op.Take.Cost == 0 {
		hits = min(op.Take.Count, 1)
	}
	if _, from, ok := e.spend(hits, v.now); ok && hits > 0 {
		op.Decision, op.Err, op.Remembered = from.decide(op, v.now), nil, false
		v.shard.stats.served++
		return served
	}
	v.note.adds, v.note.holds = true, e.has(v.now) > 0
	return asks
}

// change ends the lease of a key that came with another rule. Nothing is leased for a while then, in case rules
// alternate.
func (v *visit) change(e *entry) {
	if v.op.Mode == backend.Look {
		return // from an operator, or from a request whose take comes next
	}
	n := v.note
	n.ends, n.holds = true, true
	n.back = &returning{limit: e.limits[0]}
	e.lease, n.back.grants = e.end()
	if v.most == 0 {
		v.shard.known.Remove(v.op.Key)
		return
	}
	*e = entry{
		lease: e.lease, wait: e.wait,
		hash: e.hash, limits: [1]engine.Limit{v.op.Limits[0]}, since: v.now, touched: v.now, calm: v.now + changed,
	}
}

// forget drops what is known about a key, and its lease: after a reset there is nothing to give hits back to.
func (ls *leases) forget(sh *leaseShard, key backend.Key, e *entry) {
	var over [2]grant
	e.lease, over = e.end()
	for _, g := range over {
		sh.stats.unspent += g.left
	}
	sh.known.Remove(key)
}

// learn notes the store's answer to op, which it was sent at time at or later, and adds the leased hits to it. It
// reports whether a refusal may be remembered.
func (ls *leases) learn(op *backend.Op, n *note, at, now engine.Micros) (lasts bool) {
	if !n.learns && !n.adds && !n.resets {
		return true
	}
	sh := ls.shard(n.hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e, ok := sh.known.Peek(op.Key)
	if !ok {
		return true
	}
	switch d := &op.Decision; {
	case n.resets:
		ls.forget(sh, op.Key, e)
	case op.Err != nil || !e.limits[0].Equal(op.Limits[0]):
	case n.adds:
		has := e.has(now)
		e.add(op, has)
		return has == 0
	default:
		e.told(d, engine.Times(d.Admitted, op.Take.Cost), at)
	}
	return true
}

// add adds has leased hits to the store's answer.
func (e *entry) add(op *backend.Op, has uint64) {
	d, l := &op.Decision, &e.limits[0]
	d.Left = min(d.Left+has, max(l.Hits, l.Burst))
	if op.Mode == backend.Give || d.Admitted >= op.Take.Count {
		return
	}
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

// told notes what the store has left after spent of the hits that it reported as left.
func (e *entry) told(d *engine.Decision, spent uint64, at engine.Micros) {
	e.left, e.known, e.whole = left(d.Left, spent), true, 0
	if d.Window != 0 {
		e.whole = at + micros(d.ResetAfter)
	}
}

// count adds the counts of ls to s.
func (ls *leases) count(s *Stats) {
	for i := range ls.shards {
		sh := &ls.shards[i]
		sh.mu.Lock()
		s.Entries += sh.known.Len()
		s.Evictions += sh.stats.evicted
		s.Hits += sh.stats.served
		s.Leased += sh.stats.leased
		s.Spent += sh.stats.spent
		s.Unspent += sh.stats.unspent
		sh.mu.Unlock()
	}
	ls.backs.mu.Lock()
	defer ls.backs.mu.Unlock()
	s.Returned += ls.backs.returned
	s.Unspent += ls.backs.lost
}

// evicted gives back what is left of the lease of a key that is dropped. The shard must be locked.
func (ls *leases) evicted(sh *leaseShard, key backend.Key, e *entry) {
	var over [2]grant
	e.lease, over = e.end()
	ls.giveBack(sh, key, e, over)
}

// giveBack queues grants to be given back by [leases.run].
func (ls *leases) giveBack(sh *leaseShard, key backend.Key, e *entry, over [2]grant) {
	for _, g := range over {
		if g.left == 0 {
			continue
		}
		if !ls.backs.add(back{key: key, hash: e.hash, limit: e.limits[0], grant: g}) {
			sh.stats.unspent += g.left
		}
	}
}

// flights bounds the refills under way, and waits for them.
type flights struct {
	open atomic.Bool // refills may begin
	mu   sync.Mutex  // guards changes of open, and n
	n    int
	wg   sync.WaitGroup
}

// maxFlights is how many refills may be under way at once.
const maxFlights = 256

// begin reports whether a refill may begin. If so it must end with done.
func (f *flights) begin() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.open.Load() || f.n >= maxFlights {
		return false
	}
	f.n++
	f.wg.Add(1)
	return true
}

func (f *flights) done() {
	f.mu.Lock()
	f.n--
	f.mu.Unlock()
	f.wg.Done()
}

// set allows or forbids refills to begin.
func (f *flights) set(open bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open.Store(open)
}
