package memory

import (
	"math"
	"math/rand/v2"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Sizes of the sample from which an eviction selects: at least minCandidates, if there are that many, and up to maxCandidates while all
// of them are in use.
const (
	minCandidates = 8
	maxCandidates = 64
)

// makeRoom drops entries until b no longer exceeds its maximum: all expired entries first, then live ones. It starts with the shard home
// and continues with the shards after it. It keeps live entries of keep.
func (b *Backend) makeRoom(home int, keep *backend.Key, now engine.Micros) {
	b.expire(home, int(b.weight.Load()-b.max), now)
	for i := range b.shards {
		if b.makeRoomIn(&b.shards[(home+i)&int(b.mask)], keep, now) {
			return
		}
	}
}

// makeRoomIn drops entries of a shard until b no longer exceeds its maximum. It reports whether that succeeded.
func (b *Backend) makeRoomIn(sh *shard, keep *backend.Key, now engine.Micros) (enough bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.reach(now)
	for b.weight.Load() > b.max {
		e := sh.least(keep)
		if e == nil {
			return false
		}
		if e.state.Expires() > now {
			b.forced.Add(1)
		}
		b.drop(sh, e)
	}
	return true
}

// least selects the entry to evict from a sample spread over the shard: the least used one and, among equals, the first to expire. So
// counters in use survive any number of keys that are seen once, regardless of their windows. It returns nil if only keep's entries are
// left.
func (sh *shard) least(keep *backend.Key) (e *entry) {
	if sh.n == 0 {
		return nil
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
		if e == nil || c.uses < e.uses || c.uses == e.uses && end < expires {
			e, expires = c, end
		}
		if i >= minCandidates && e.uses == 0 {
			break
		}
	}
	return e
}

// age decrements the use count of the next entry in turn. So an entry keeps its count if it is used once while as many entries are
// evicted as the shard has.
func (sh *shard) age() {
	if sh.hand >= sh.n {
		sh.hand = 0
	}
	e := sh.at(sh.hand)
	e.uses -= min(e.uses, 1)
	sh.hand++
}

// While there is traffic, a sweep drops up to sweepBatch expired entries every sweepEvery.
const (
	sweepEvery = 10_000 // µs
	sweepBatch = 1024
	sweepBack  = -10_000_000 // µs; the clock was set back if it is earlier than the last sweep by more than this
)

// sweep drops some expired entries if the next sweep is due.
func (b *Backend) sweep(now engine.Micros) {
	last := b.swept.Load()
	since := int64(now) - last // slightly negative if another caller read the clock later
	if (since < sweepBack || since >= sweepEvery) && b.swept.CompareAndSwap(last, int64(now)) {
		b.expire(rand.IntN(len(b.shards)), sweepBatch, now)
	}
}

// expire drops up to most expired entries, starting with the shard home.
func (b *Backend) expire(home, most int, now engine.Micros) {
	for i := range b.due {
		if at := (home + i) & int(b.mask); b.due[at].Load() <= int64(now) && most > 0 {
			most -= b.expireIn(&b.shards[at], most, now)
		}
	}
}

// expireIn drops up to most expired entries of a shard and returns their number.
func (b *Backend) expireIn(sh *shard, most int, now engine.Micros) (dropped int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.reach(now)
	for ; dropped < most; dropped++ {
		e := sh.expired(now)
		if e == nil {
			break
		}
		b.drop(sh, e)
	}
	sh.due.Store(math.MaxInt64)
	if sh.n > 0 {
		sh.due.Store(int64(sh.first().due))
	}
	return dropped
}

// reach advances the clock of sh to now. Otherwise an op that read the clock earlier could find an empty window although the window's
// counter was just dropped as expired. The caller holds the lock of sh.
func (sh *shard) reach(now engine.Micros) { sh.last = max(sh.last, now) }

// drop removes e from sh. The caller holds the lock of sh.
func (b *Backend) drop(sh *shard, e *entry) {
	b.weight.Add(-int64(e.weight))
	sh.remove(e)
}
