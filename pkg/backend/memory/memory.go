// Package memory implements a backend that stores counters in this process.
//
// Counters are distributed over shards, each with a mutex and a table. All states of one descriptor, those of its limits and of its
// penalty, are in the same shard, so a decision takes a single lock. There is no background goroutine: operations drop expired counters,
// a bounded number at a time. The number of counters is capped. If no counter in any shard has expired, the cap evicts the least used
// counters; see [Stats].
//
// This package is part of the core.
package memory

import (
	"context"
	"math"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// DefaultMaxKeys is the default of [Config.MaxKeys].
const DefaultMaxKeys = 1_000_000

// The number of shards is a power of two. There are up to manyShards, enough for every processor to find a free one, provided that each
// holds at least minShard counters when the backend is full, which leaves a choice for evictions. There are more, up to maxShards, if a
// shard would otherwise hold more than maxShard counters, because growing a larger one would cause a noticeable pause.
const (
	manyShards = 256
	minShard   = 64
	maxShards  = 4096
	maxShard   = 4096
	maxMaxKeys = maxShards * maxEntries / 4 // leaves room for uneven shards
)

// Config configures a Backend. The zero value is valid.
type Config struct {
	// MaxKeys is the maximum number of counters: [DefaultMaxKeys] if it is not positive, and at most about a billion. Each limit of a
	// descriptor and each penalty count as one; a log of stamps counts as one per 16 stamps. The counters of the most recent descriptor are
	// always kept, even if they exceed the maximum on their own.
	MaxKeys int
	// Now returns the time; nil means the system clock. It must be safe for concurrent use.
	Now func() engine.Micros
}

// Backend is a [backend.Backend] in memory.
type Backend struct {
	now    func() engine.Micros
	max    int64
	seed   backend.Seed
	mask   uint64 // number of shards − 1
	shards []shard
	due    []atomic.Int64 // by shard, in µs since the epoch; no entry expires earlier. Read without the lock
	swept  atomic.Int64   // time of the last sweep, in µs since the epoch

	weight atomic.Int64 // total weight of the entries; must not exceed max
	forced atomic.Uint64
}

// Stats describes the content of a [Backend].
type Stats struct {
	Entries   int    // live states
	Keys      int    // live states, counted as for [Config.MaxKeys]
	ForcedOut uint64 // entries evicted before they expired, since the start; each eviction reset a limit early
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
		seed:   backend.NewSeed(),
		mask:   uint64(n - 1),
		shards: make([]shard, n),
		due:    make([]atomic.Int64, n),
	}
	for i := range b.shards {
		b.shards[i].table = newTable()
		b.shards[i].due = &b.due[i]
		b.due[i].Store(math.MaxInt64)
	}
	return b
}

// Apply implements backend.Backend. It blocks only on other ops on the same shard, so it ignores the context and never sets Err.
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

// Close implements backend.Backend. It does nothing.
func (b *Backend) Close() error { return nil }

// Stats drops all expired counters and describes the rest. It locks each shard in turn.
func (b *Backend) Stats() Stats {
	b.expire(0, math.MaxInt, b.now())
	s := Stats{Keys: int(b.weight.Load()), ForcedOut: b.forced.Load()}
	for i := range b.shards {
		sh := &b.shards[i]
		sh.mu.Lock()
		s.Entries += int(sh.n)
		sh.mu.Unlock()
	}
	return s
}

// hash returns the hash of k. Its low bits select the shard and its high bits the place within the shard.
func (b *Backend) hash(k *backend.Key) uint64 { return b.seed.Hash(k) }

// decide applies op under the lock of its shard. It reports whether the backend then exceeds its maximum.
func (b *Backend) decide(sh *shard, hash uint32, op *backend.Op, now engine.Micros) (full bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock() // even if an engine panics
	if now < sh.last {
		// An op that read the clock later got the lock first. Time must not go backwards because of that, or this hit would count in the
		// previous window. If the new time is still earlier, the clock was set back, which engines handle.
		now = b.now()
	}
	sh.last = now
	grown := sh.apply(hash, op, now)
	return grown != 0 && b.weight.Add(int64(grown)) > b.max && grown > 0
}

var _ backend.Backend = (*Backend)(nil)
