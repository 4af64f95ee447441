package nearcache

import (
	"math/bits"
	"sync"
	"sync/atomic"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

const (
	minKeys = 2       // the minimum of a TwoQueueCache
	epochs  = 1 << 16 // a power of two
)

// rejections remembers rejections.
//
// A remembered rejection ends with the epoch of its key. A refund, a reset or a changed limit starts a new epoch, both before the store
// is asked and after its answer. So does an admitted op that delays the rejected one, after the answer. A rejection is valid only if the
// epoch has not changed since the store was asked. So it never outlives this replica's operations, in whatever order answers arrive. Keys
// may share an epoch, which is rare because there are many; a rejection then ends early.
type rejections struct {
	longest engine.Micros
	shards  []rejectionShard
	epochs  []epoch
}

// epoch is the epoch of some keys, and the state of the ops that the store is deciding for them. Two rules may use the same key, during a
// reload or if requests carry limits. An op under one rule may lift a rejection under the other, and the order of the store's decisions
// is unknown.
type epoch struct {
	now    atomic.Uint32
	mu     sync.Mutex
	asked  uint32 // number of takes and checks in progress
	rule   uint32 // hash of the rule of the first of them
	cost   uint64 // of the first of them
	differ bool   // rules differ; valid until none is in progress
	mixed  bool   // one may be admitted while another cost is rejected; valid until none is in progress
}

// next starts a new epoch and returns it.
func (e *epoch) next() uint32 { return e.now.Add(1) }

// ask registers op, a take or a check, before the store decides it. other means that a rejection of another cost is remembered.
func (e *epoch) ask(op *backend.Op, p *pending, other bool) {
	rule, cost := ruleHash(op), max(op.Take.Cost, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.asked == 0 {
		e.rule, e.cost, e.differ, e.mixed = rule, cost, false, false
	}
	e.mixed = e.mixed || other || e.cost != cost
	if e.rule != rule && !e.differ {
		e.differ = true
		e.next()
	}
	if e.differ {
		p.use = rejectionEnds
	}
	p.epoch = e.now.Load()
	e.asked++
}

// answered unregisters an op after the store's answer, and returns e.mixed.
func (e *epoch) answered() (mixed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked--
	return e.mixed
}

// ruleHash returns a hash of the rule of op.
func ruleHash(op *backend.Op) uint32 {
	const odd = 0x9e3779b97f4a7c15
	h := uint64(len(op.Limits))
	add := func(n uint64) { h = bits.RotateLeft64((h^n)*odd, 29) }
	for i := range op.Limits {
		add(op.Limits[i].Hash())
	}
	if p := op.Penalty; p != nil {
		add(uint64(p.For))
		add(uint64(p.Max)<<8 ^ uint64(p.On))
		add(uint64(p.Escalate))
	}
	return uint32(h >> 32)
}

// rejectionShard remembers the rejections of some keys.
type rejectionShard struct {
	adding sync.Mutex // held while a key is added, so that a new key is counted once
	added  uint64     // number of new keys; guarded by adding
	cache  *lru.TwoQueueCache[backend.Key, *remembered]
	served paddedCounter

	misses, expired paddedCounter
}

// remembered is a rejection in the table with its state. A fresh rejection answers ops until it expires. The op that finds it expired
// renews it, by asking the store, while others wait; the store's answer makes it old.
type remembered struct {
	rejection

	epoch uint32
	state atomic.Uint32
}

const (
	fresh uint32 = iota
	renewing
	old
)

func newRejections(keys int, longest engine.Micros) *rejections {
	n := shardsFor(keys)
	r := &rejections{longest: longest, shards: make([]rejectionShard, n), epochs: make([]epoch, epochs)}
	for i := range r.shards {
		cache, err := lru.New2Q[backend.Key, *remembered](max(keys/n, minKeys))
		if err != nil {
			panic("nearcache: a cache of at least two keys was rejected: " + err.Error()) //nolint:forbidigo // the size is checked above
		}
		r.shards[i].cache = cache
	}
	return r
}

func (r *rejections) shard(hash uint64) *rejectionShard {
	return &r.shards[hash&uint64(len(r.shards)-1)]
}

func (r *rejections) epoch(hash uint64) *epoch { return &r.epochs[hash>>32%epochs] }

// asks reports whether a rejection may answer op: a take or a check without a reservation. An op with a reservation may end expired
// reservations, which lifts rejections.
func asks(op *backend.Op) bool {
	return (op.Mode == backend.Take || op.Mode == backend.Peek) && op.Reserve == nil
}

// answer decides op from a remembered rejection, or prepares p for the store, or sets p.wait.
func (r *rejections) answer(op *backend.Op, p *pending, now engine.Micros) verdict {
	if !asks(op) {
		r.ask(op, p, false)
		return askStore
	}
	e, sh, other := r.epoch(p.hash), r.shard(p.hash), false
	m, ok := sh.cache.Get(op.Key)
	if ok && p.use == rejectionAnswers && m.epoch == e.now.Load() {
		switch {
		case !m.live(now) && m.state.CompareAndSwap(fresh, renewing):
			sh.expired.Add(1)
			p.renews = m
		case m.state.Load() == renewing && m.renewed != nil && m.sameRule(op) && m.rejects(op) && p.mayWait():
			p.wait = m.renewed
			return later
		case m.state.Load() != fresh: // remains so if the clock is set back
		case !m.sameRule(op):
			p.use = rejectionEnds
			e.next()
		case m.rejects(op):
			op.Decision, op.Err, op.Origin = m.decide(op, now), nil, backend.FromRejection
			sh.served.Add(1)
			return decided
		default:
			other = true
		}
	}
	r.countMiss(op, p)
	e.ask(op, p, other)
	return askStore
}

// end makes m old and wakes up waiting ops.
func (m *remembered) end() {
	if m.state.Store(old); m.renewed != nil {
		close(m.renewed)
	}
}

// ask prepares p for the store. other means that a rejection of another cost may be remembered.
func (r *rejections) ask(op *backend.Op, p *pending, other bool) {
	e := r.epoch(p.hash)
	if asks(op) {
		e.ask(op, p, other)
		return
	}
	p.use = rejectionEnds
	e.next()
}

// countMiss counts op, a take or a check that no rejection answered, unless its request has asked before.
func (r *rejections) countMiss(op *backend.Op, p *pending) {
	if !op.Again {
		r.shard(p.hash).misses.Add(1)
	}
}

// observe remembers or ends a rejection according to the store's answer to op. The store was asked at the time asked or later.
func (r *rejections) observe(op *backend.Op, p *pending, asked engine.Micros) {
	if p.renews != nil {
		defer p.renews.end()
	}
	e := r.epoch(p.hash)
	mixed := asks(op) && e.answered()
	if p.use == rejectionEnds {
		e.next()
		return
	}
	if mixed && delays(op) && e.next() == p.epoch+1 {
		p.epoch++ // its own rejection is valid
	}
	rejected := rejectionOf(op, asked, r.longest)
	if rejected == nil || e.now.Load() != p.epoch {
		return
	}
	sh := r.shard(p.hash)
	sh.adding.Lock()
	defer sh.adding.Unlock()
	if !sh.cache.Contains(op.Key) {
		sh.added++
	}
	sh.cache.Add(op.Key, &remembered{rejection: *rejected, epoch: p.epoch})
}

// count adds the statistics of r to s.
func (r *rejections) count(s *Stats) {
	for i := range r.shards {
		sh := &r.shards[i]
		sh.adding.Lock()
		n := sh.cache.Len()
		s.Remembered += n
		s.Forgotten += sh.added - uint64(n) // keys are removed only to make room
		sh.adding.Unlock()
		s.Rejections += sh.served.Load()
		s.Misses += sh.misses.Load()
		s.Expired += sh.expired.Load()
	}
	s.Hits += s.Rejections
	s.Entries += s.Remembered
	s.Evictions += s.Forgotten
}

// paddedCounter is a counter in a cache line of its own, against false sharing.
type paddedCounter struct {
	atomic.Uint64

	_ [56]byte
}
