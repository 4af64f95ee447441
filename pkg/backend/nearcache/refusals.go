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

// refusals remembers refusals.
//
// Epochs say what ends them: a give-back, a reset or a changed limit begins the next epoch of its key, before the store
// is asked and again when it has answered, and a refusal is void unless the epoch in which the store was asked is still
// the current one. So no refusal outlives what this replica did, in whatever order answers come. Keys may share an
// epoch, which is rare because there are so many; a refusal is then forgotten early.
type refusals struct {
	longest engine.Micros
	mask    uint64
	shards  []shard
	epochs  []epoch
}

// epoch is the epoch of some keys, and the state of what the store is being asked about them. Two rules may use one
// key, while rules are reloaded or when requests bring limits of their own; what one of them writes may lift a refusal
// by the other, and it is not known which of the two the store decided first.
type epoch struct {
	now    atomic.Uint32
	mu     sync.Mutex
	asked  uint32 // takes and looks under way
	rule   uint32 // a hash of the rule that decides them
	differ bool   // another rule decides some of them; stays true until none is under way
}

// next begins the next epoch.
func (e *epoch) next() { e.now.Add(1) }

// ask notes in n that the store is asked about op, a take or a look.
func (e *epoch) ask(op *backend.Op, n *note) {
	rule := ruleHash(op)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.asked == 0 {
		e.rule, e.differ = rule, false
	}
	if e.rule != rule && !e.differ {
		e.differ = true
		e.next()
	}
	n.ends = n.ends || e.differ
	n.epoch = e.now.Load()
	e.asked++
}

// answered notes that the store has answered a take or a look.
func (e *epoch) answered() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked--
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

// shard remembers the refusals of some keys.
type shard struct {
	adding sync.Mutex // held while a key is added, so that a new one is counted once
	added  uint64     // new keys; guarded by adding
	cache  *lru.TwoQueueCache[backend.Key, *memory]
	served tally

	misses, expired tally
}

// memory is a refusal and its state.
type memory struct {
	refusal

	epoch uint32
	ended atomic.Bool // was found expired, so a clock that jumps back does not revive it
	again atomic.Pointer[renewal]
}

// renewal is the first op that asks the store again when a refusal is no longer remembered although it lasts. Others
// wait for its answer, so that a crowd asks once.
type renewal struct {
	over atomic.Bool
	wait chan struct{} // closed then
}

// renew makes the op of n the one that asks if it is the first. Otherwise it sets n.wait, and reports whether the first
// is still under way.
func (m *memory) renew(n *note) (waits bool) {
	again := m.again.Load()
	if again == nil {
		again = &renewal{wait: make(chan struct{})}
		if m.again.CompareAndSwap(nil, again) {
			n.renews = again
			return false
		}
		again = m.again.Load()
	}
	n.wait = again.wait
	return !again.over.Load()
}

// end releases those who wait.
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

func newRefusals(keys int, longest engine.Micros) *refusals {
	n := shardsFor(keys)
	r := &refusals{
		longest: longest,
		mask:    uint64(n - 1),
		shards:  make([]shard, n),
		epochs:  make([]epoch, epochs),
	}
	for i := range r.shards {
		cache, err := lru.New2Q[backend.Key, *memory](max(keys/n, minKeys))
		if err != nil {
			panic("nearcache: a cache of at least two keys was refused: " + err.Error()) //nolint:forbidigo // the size is checked above
		}
		r.shards[i].cache = cache
	}
	return r
}

func (r *refusals) shard(hash uint64) *shard { return &r.shards[hash&r.mask] }

func (r *refusals) epoch(hash uint64) *epoch { return &r.epochs[hash>>32%epochs] }

// answer decides op from what is remembered, or notes in n that the store is asked, or what to wait for. ops are the
// ops of the call; if nil, op may not wait.
func (r *refusals) answer(op *backend.Op, n *note, now engine.Micros, ops []backend.Op) verdict {
	e := r.epoch(n.hash)
	if op.Mode != backend.Take && op.Mode != backend.Look {
		n.ends = true
		e.next()
		return asks
	}
	sh := r.shard(n.hash)
	m, ok := sh.cache.Get(op.Key)
	if ok && !n.holds && m.epoch == e.now.Load() && (m.lasts || !m.ended.Load()) {
		switch {
		case m.ended.Load() || !m.live(now):
			if !m.ended.Swap(true) {
				sh.expired.Add(1)
			}
			if m.lasts && m.speaks(op) && m.answers(op) && m.renew(n) && mayWait(ops, n.index) {
				return waits
			}
		case !m.speaks(op):
			n.ends = true
			e.next()
		case m.answers(op):
			op.Decision, op.Err, op.Remembered = m.decide(op, now), nil, true
			sh.served.Add(1)
			return served
		}
	}
	r.missed(op, n)
	e.ask(op, n)
	return asks
}

// missed counts op, a take or a look that no refusal answers, unless its request has asked before.
func (r *refusals) missed(op *backend.Op, n *note) {
	if !op.Again {
		r.shard(n.hash).misses.Add(1)
	}
}

// learn remembers the store's answer to op, which it was sent at time at or later.
func (r *refusals) learn(op *backend.Op, n *note, at engine.Micros) {
	defer n.renews.end()
	e := r.epoch(n.hash)
	if n.ends {
		e.next()
	}
	if op.Mode == backend.Take || op.Mode == backend.Look {
		e.answered()
	}
	if n.ends {
		return
	}
	refused := refusalOf(op, at, r.longest)
	if refused == nil || e.now.Load() != n.epoch {
		return
	}
	sh := r.shard(n.hash)
	sh.adding.Lock()
	defer sh.adding.Unlock()
	if !sh.cache.Contains(op.Key) {
		sh.added++
	}
	sh.cache.Add(op.Key, &memory{refusal: *refused, epoch: n.epoch})
}

// count adds the counts of r to s.
func (r *refusals) count(s *Stats) {
	for i := range r.shards {
		sh := &r.shards[i]
		sh.adding.Lock()
		n := sh.cache.Len()
		s.Remembered += n
		s.Forgotten += sh.added - uint64(n) // keys are removed only to make room
		sh.adding.Unlock()
		s.Refusals += sh.served.Load()
		s.Misses += sh.misses.Load()
		s.Expired += sh.expired.Load()
	}
	s.Hits += s.Refusals
	s.Entries += s.Remembered
	s.Evictions += s.Forgotten
}
