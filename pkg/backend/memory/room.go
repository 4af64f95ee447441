package memory

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// When an entry has to go, at least minCandidates are compared, if there are that many, and up to maxCandidates as long
// as all of them are in use.
const (
	minCandidates = 8
	maxCandidates = 64
)

// makeRoom drops entries until b holds no more than it may: from the shard home as long as it has entries other than
// keep's, then from the shards after it. Entries of keep stay. It sweeps a little first, so that expired entries soon
// make all the room that is needed.
func (b *Backend) makeRoom(home int, keep *backend.Key, now engine.Micros) {
	b.sweepShard(&b.shards[home], minCandidates, now)
	for i := range b.shards {
		if b.makeRoomIn(&b.shards[(home+i)&int(b.mask)], keep, now) {
			return
		}
	}
}

func (b *Backend) makeRoomIn(sh *shard, keep *backend.Key, now engine.Micros) (enough bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.reach(now)
	for b.weight.Load() > b.max {
		e, live := sh.least(keep, now)
		if e == nil {
			return false
		}
		if live {
			b.forced.Add(1)
		}
		b.drop(sh, e)
	}
	return true
}

// least picks the entry to drop: one that has expired or, from a sample spread over the shard, the least used one and
// among equals the first to expire. So counters in use outlive any number of keys that are seen once, however long
// their windows are. It returns nil if only keep's entries are left.
func (sh *shard) least(keep *backend.Key, now engine.Micros) (e *entry, live bool) {
	if sh.n == 0 {
		return nil, false
	}
	sh.age()
	var expires engine.Micros
	at, step := rand.Uint32N(sh.n), max(1, sh.n/maxCandidates)
	for i := range min(sh.n, maxCandidates) {
		c := sh.at((at + i*step) % sh.n)
		if c.key == *keep {
			continue
		}
		end := c.state.Expires()
		if end <= now {
			return c, false
		}
		if e == nil || c.uses < e.uses || c.uses == e.uses && end < expires {
			e, expires = c, end
		}
		if i >= minCandidates && e.uses == 0 {
			break
		}
	}
	return e, true
}

// age takes one use off the next entry in turn. So an entry keeps its count if it is used once in the time it takes to
// force out as many entries as the shard has.
func (sh *shard) age() {
	if sh.hand >= sh.n {
		sh.hand = 0
	}
	e := sh.at(sh.hand)
	e.uses -= min(e.uses, 1)
	sh.hand++
}

// While there is traffic, every entry is examined once per sweepRound, sweepBatch entries at a time. Visiting a shard
// counts as one more entry.
const (
	sweepRound = 10_000_000 // µs
	sweepBatch = 256
)

// sweeper keeps track of when and where to sweep next.
type sweeper struct {
	last  atomic.Int64 // when the last batch was swept, in µs since the epoch
	every atomic.Int64 // µs between batches
	most  atomic.Int64 // the largest total weight seen in this round
	shard atomic.Uint64
}

// sweep drops what has expired from the next batch of entries, if it is time to.
func (b *Backend) sweep(now engine.Micros) {
	s := &b.sweeps
	last := s.last.Load()
	since := int64(now) - last // slightly negative if another caller read the clock later, very negative if the clock was set back
	if since > -sweepRound && since < s.every.Load() || !s.last.CompareAndSwap(last, int64(now)) {
		return
	}
	most := max(s.most.Load(), b.weight.Load())
	s.most.Store(most)
	s.every.Store(sweepRound * sweepBatch / (most + int64(len(b.shards))))
	budget := sweepBatch
	for range b.shards {
		at := s.shard.Load() & b.mask
		left, done := b.sweepShard(&b.shards[at], budget-1, now)
		if done && s.shard.CompareAndSwap(at, (at+1)&b.mask) && at == b.mask {
			s.most.Store(b.weight.Load())
		}
		if left <= 0 {
			return
		}
		budget = left
	}
}

// sweepShard examines up to budget entries of sh. It returns the rest of the budget, and whether it reached the end of the shard.
func (b *Backend) sweepShard(sh *shard, budget int, now engine.Micros) (left int, done bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.reach(now)
	for ; budget > 0 && sh.broom < sh.n; budget-- {
		e := sh.at(sh.broom)
		if e.state.Expires() > now {
			sh.broom++
			continue
		}
		b.drop(sh, e) // the last entry takes its place and is examined next
	}
	if sh.broom < sh.n {
		return budget, false
	}
	sh.broom = 0
	return budget, true
}

// reach moves the clock of sh to now, unless it is later already. So an op that read the clock earlier does not find a window empty
// whose counter has been dropped since as expired. The lock of sh is held.
func (sh *shard) reach(now engine.Micros) { sh.last = max(sh.last, now) }

// drop removes e from sh, whose lock is held.
func (b *Backend) drop(sh *shard, e *entry) {
	b.weight.Add(-int64(e.weight))
	sh.remove(e)
}
