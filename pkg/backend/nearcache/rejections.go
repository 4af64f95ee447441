package nearcache

import (
	"math/bits"
	"sync"
	"sync/atomic"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// The number of shards is a power of two: up to maxShards, provided that each has room for minShard keys, so that there
// is a choice when one has to go.
const (
	maxShards = 64
	minShard  = 64
	minKeys   = 2       // the minimum of a TwoQueueCache
	epochs    = 1 << 16 // a power of two
)

// rejections remembers rejections.
//
// Epochs say what ends them: a refund, a reset or a changed limit begins the next epoch of its key, before the store
// is asked and again when it has answered; another cost that is admitted, for which the rejected one has to wait longer,
// does when it has answered. A rejection is void unless the epoch in which the store was asked is still the current one. So no
// rejection outlives what this replica did, in whatever order answers come. Keys may share an epoch, which is rare because
// there are so many; a rejection is then forgotten early.
type rejections struct {
	longest engine.Micros
	shards  []rejectionShard
	epochs  []epoch
}

// epoch is the epoch of some keys, and the state of what the store is being asked about them. Two rules may use one
// key, while rules are reloaded or when requests bring limits of their own; what one of them writes may lift a rejection
// by the other, and it is not known which of the two the store decided first.
type epoch struct {
	now    atomic.Uint32
	mu     sync.Mutex
	asked  uint32 // takes and looks under way
	rule   uint32 // a hash of the rule that decides them
	cost   uint64 // of the first of them
	differ bool   // another rule decides some of them; stays true until none is under way
	mixed  bool   // some of them may be admitted while another cost is rejected; likewise
}

// next begins the next epoch, and returns it.
func (e *epoch) next() uint32 { return e.now.Add(1) }

// ask notes in p that the store is asked about op, a take or a look, although a rejection is remembered if other is set.
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
		p.rejection = rejectionEnds
	}
	p.epoch = e.now.Load()
	e.asked++
}

// answered notes that the store has answered a take or a look. It reports whether others may have to wait longer if that was
// admitted.
func (e *epoch) answered() (mixed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked--
	return e.mixed
}

// ruleHash returns a hash of the rule that decides op.
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
	adding sync.Mutex // held while a key is added, so that a new one is counted once
	added  uint64     // new keys; guarded by adding
	cache  *lru.TwoQueueCache[backend.Key, *remembered]
	served paddedCounter

	misses, expired paddedCounter
}

// remembered is a rejection and its state.
type remembered struct {
	rejection

	epoch   uint32
	ended   atomic.Bool // was found expired, so a clock that jumps back does not revive it
	renewal atomic.Pointer[renewal]
}

// renewal is the first op that asks the store again when a rejection is no longer remembered although it lasts. Others
// wait for its answer, so that a crowd asks once.
type renewal struct {
	over atomic.Bool
	wait chan struct{} // closed then
}

// renew makes the op of p the one that asks if it is the first. Otherwise it sets p.wait, and reports whether the first
// is still under way.
func (m *remembered) renew(p *pending) (waits bool) {
	first := m.renewal.Load()
	if first == nil {
		first = &renewal{wait: make(chan struct{})}
		if m.renewal.CompareAndSwap(nil, first) {
			p.renewal = first
			return false
		}
		first = m.renewal.Load()
	}
	p.wait = first.wait
	return !first.over.Load()
}

// end releases those that wait.
func (r *renewal) end() {
	if r != nil {
		r.over.Store(true)
		close(r.wait)
	}
}

// shardsFor returns the number of shards for that many keys.
func shardsFor(keys int) int {
	n := 1
	for n < maxShards && 2*n*minShard <= keys {
		n *= 2
	}
	return n
}

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

// asks reports whether op is a take or a look that a rejection may answer. Whatever is asked beside reservations may end
// some that have expired, and so lift a rejection.
func asks(op *backend.Op) bool {
	return (op.Mode == backend.Take || op.Mode == backend.Peek) && op.Reserve == nil
}

// answer decides op from what is remembered, or notes in p that the store is asked, or what to wait for. ops are the
// ops of the call; if nil, op may not wait.
func (r *rejections) answer(op *backend.Op, p *pending, now engine.Micros, ops []backend.Op) action {
	e := r.epoch(p.hash)
	if !asks(op) {
		p.rejection = rejectionEnds
		e.next()
		return askStore
	}
	sh, other := r.shard(p.hash), false
	m, ok := sh.cache.Get(op.Key)
	if ok && p.rejection == rejectionAnswers && m.epoch == e.now.Load() && (m.lasts || !m.ended.Load()) {
		switch {
		case m.ended.Load() || !m.live(now):
			if !m.ended.Swap(true) {
				sh.expired.Add(1)
			}
			if m.lasts && m.sameRule(op) && m.rejects(op) && m.renew(p) && mayWait(ops, p.index) {
				return wait
			}
		case !m.sameRule(op):
			p.rejection = rejectionEnds
			e.next()
		case m.rejects(op):
			op.Decision, op.Err, op.Origin = m.decide(op, now), nil, backend.FromRejection
			sh.served.Add(1)
			return served
		default:
			other = true
		}
	}
	r.countMiss(op, p)
	e.ask(op, p, other)
	return askStore
}

// countMiss counts op, a take or a check that no rejection answers, unless its request has asked before.
func (r *rejections) countMiss(op *backend.Op, p *pending) {
	if !op.Again {
		r.shard(p.hash).misses.Add(1)
	}
}

// learn remembers the store's answer to op, which it was sent at time at or later.
func (r *rejections) learn(op *backend.Op, p *pending, at engine.Micros) {
	defer p.renewal.end()
	e := r.epoch(p.hash)
	mixed := asks(op) && e.answered()
	if p.rejection == rejectionEnds {
		e.next()
		return
	}
	if mixed && delays(op) && e.next() == p.epoch+1 {
		p.epoch++ // its own rejection holds
	}
	rejected := rejectionOf(op, at, r.longest)
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

// count adds the counts of r to s.
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
