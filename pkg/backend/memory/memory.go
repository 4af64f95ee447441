// Package memory keeps counters in this process.
//
// Counters live in shards, each a mutex and a table of its own. All states of one descriptor, those of its limits and of
// its penalty, lie in one shard, so that they are decided on under one lock. Nothing runs in the background: what has
// expired is dropped by the operations that follow, a bounded number of entries at a time, and a cap on the number of
// counters holds whatever clients send. Where only counters that still say something are left, the cap forces out those
// that say least; see [Stats].
package memory

import (
	"context"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// DefaultMaxKeys is the cap on counters where [Config] sets none.
const DefaultMaxKeys = 1_000_000

// The number of shards is a power of two. There are up to manyShards, enough for every processor of a machine to find one
// free, as long as each holds minShard counters when b is full, so that there is something to choose from when one has to
// go. There are up to maxShards where they would hold more than maxShard else, whose growth would be felt.
const (
	manyShards = 256
	minShard   = 64
	maxShards  = 4096
	maxShard   = 4096
	maxMaxKeys = maxShards * maxEntries / 4 // leaves room for shards that hold more than others
)

// Config says how counters are kept. Its zero value works.
type Config struct {
	// MaxKeys is how many counters are kept at most: [DefaultMaxKeys] if it is not positive, and no more than a billion. Each limit of a descriptor and
	// a penalty count as one, a log of stamps as one per 16 of them. The counters of the descriptor decided on last are
	// kept in any case, also where they alone come to more.
	MaxKeys int
	// Now is the time: that of the system's clock if nil. It is called concurrently.
	Now func() engine.Micros
}

// Backend is a [backend.Backend] in memory.
type Backend struct {
	now    func() engine.Micros
	max    int64
	seed   [2]uint64 // so that nobody outside can tell which keys meet in one place
	mask   uint64    // number of shards − 1
	shards []shard
	sweeps sweeper

	weight atomic.Int64 // of all entries, held against max
	forced atomic.Uint64
}

// Stats tells how full a [Backend] is.
type Stats struct {
	Entries   int    // states held, those that have expired and were not dropped yet included
	Keys      int    // the same as Config.MaxKeys counts them
	ForcedOut uint64 // entries dropped to make room before they expired, since the start; each opened a limit early
}

// New returns an empty backend.
func New(c Config) *Backend {
	if c.MaxKeys <= 0 {
		c.MaxKeys = DefaultMaxKeys
	}
	if c.Now == nil {
		c.Now = newClock().now
	}
	c.MaxKeys = min(c.MaxKeys, maxMaxKeys)
	n := 1
	for n < manyShards && 2*n*minShard <= c.MaxKeys || n < maxShards && n*maxShard < c.MaxKeys {
		n *= 2
	}
	b := &Backend{
		now:    c.Now,
		max:    int64(c.MaxKeys),
		seed:   [2]uint64{rand.Uint64(), rand.Uint64()},
		mask:   uint64(n - 1),
		shards: make([]shard, n),
	}
	for i := range b.shards {
		b.shards[i].table = newTable()
	}
	return b
}

// Apply decides every op. It never waits for anything but another op on the same shard, so it does not look at ctx, and it
// leaves every Err nil.
func (b *Backend) Apply(_ context.Context, ops []backend.Op) {
	now := b.now()
	for i := range ops {
		op := &ops[i]
		h := b.hash(&op.Key)
		home := int(h & b.mask)
		if b.decide(&b.shards[home], uint32(h>>32), op, now) {
			b.makeRoom(home, &op.Key, now)
		}
	}
	b.sweep(now)
}

// Close does nothing: there is nothing to release.
func (b *Backend) Close() error { return nil }

// Stats counts what b holds. It takes every shard's lock in turn.
func (b *Backend) Stats() Stats {
	s := Stats{Keys: int(b.weight.Load()), ForcedOut: b.forced.Load()}
	for i := range b.shards {
		sh := &b.shards[i]
		sh.mu.Lock()
		s.Entries += int(sh.n)
		sh.mu.Unlock()
	}
	return s
}

// hash spreads keys over shards (its low bits) and the places in them (its high bits). Keys are hashes already, but of
// values that clients choose; the seeds keep them from choosing values that meet.
func (b *Backend) hash(k *backend.Key) uint64 {
	hi, lo := bits.Mul64(binary.LittleEndian.Uint64(k[:8])^b.seed[0], binary.LittleEndian.Uint64(k[8:])^b.seed[1])
	return hi ^ lo
}

// decide applies op under the lock of its shard, and reports whether the backend now holds more than it may.
func (b *Backend) decide(sh *shard, hash uint32, op *backend.Op, now engine.Micros) (full bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock() // also if an engine panics
	if now < sh.last {
		// Who read the clock later came first. Time must not run backwards because of that, or a hit of this window would
		// be counted to the one before; if it still does, the clock itself was set back, which engines know how to take.
		now = b.now()
	}
	sh.last = now
	grown := sh.apply(hash, op, now)
	return grown != 0 && b.weight.Add(int64(grown)) > b.max && grown > 0
}

var _ backend.Backend = (*Backend)(nil)
