// Package memory keeps counters in this process.
//
// Counters live in shards, each with a mutex and a table of its own. All states of one descriptor, those of its limits and of its
// penalty, are in one shard, so that one lock covers a decision. Nothing runs in the background: later operations drop expired
// counters, a bounded number at a time. A cap on the number of counters holds whatever clients send. Only if no counter in any shard
// has expired does the cap force out the least used counters; see [Stats].
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

// DefaultMaxKeys is the cap on counters if [Config] sets none.
const DefaultMaxKeys = 1_000_000

// The number of shards is a power of two. There are up to manyShards, enough for every processor to find one free,
// provided that each holds at least minShard counters when the backend is full, so that there is a choice when one has
// to go. There are more, up to maxShards, if a shard would otherwise hold more than maxShard counters, since growing a
// larger one would cause a noticeable pause.
const (
	manyShards = 256
	minShard   = 64
	maxShards  = 4096
	maxShard   = 4096
	maxMaxKeys = maxShards * maxEntries / 4 // leaves room for shards that hold more than others
)

// Config says how counters are kept. Its zero value works.
type Config struct {
	// MaxKeys is the maximum number of counters kept: [DefaultMaxKeys] if it is not positive, and about a billion at
	// most. Each limit of a descriptor and a penalty count as one, a log of stamps as one per 16 stamps. The counters
	// of the most recent descriptor are always kept, even if they alone exceed the maximum.
	MaxKeys int
	// Now returns the time. If nil, it is the system clock's. It is called concurrently.
	Now func() engine.Micros
}

// Backend is a [backend.Backend] in memory.
type Backend struct {
	now    func() engine.Micros
	max    int64
	seed   backend.Seed
	mask   uint64 // number of shards − 1
	shards []shard
	due    []atomic.Int64 // by shard, in µs since the epoch; nothing expires before. Read without the lock
	swept  atomic.Int64   // when expired entries were last dropped, in µs since the epoch

	weight atomic.Int64 // of all entries; must not exceed max
	forced atomic.Uint64
}

// Stats says how full a [Backend] is.
type Stats struct {
	Entries   int    // live states
	Keys      int    // the same, counted as [Config.MaxKeys] does
	ForcedOut uint64 // entries dropped before they expired to make room, since the start; each reset a limit early
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

// Apply decides every op. It waits for nothing but other ops on the same shard, so it ignores ctx, and it leaves every
// Err nil.
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

// Stats returns what b holds, once it has dropped what has expired. It takes every shard's lock in turn.
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

// hash spreads keys over shards (its low bits) and over the places within them (its high bits).
func (b *Backend) hash(k *backend.Key) uint64 { return b.seed.Hash(k) }

// decide applies op under the lock of its shard, and reports whether the backend now holds more than it may.
func (b *Backend) decide(sh *shard, hash uint32, op *backend.Op, now engine.Micros) (full bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock() // also if an engine panics
	if now < sh.last {
		// An op that read the clock later got the lock first. Time must not go backwards because of that, or a hit of
		// this window would be counted in the one before. If it still does, the clock itself was set back, which
		// engines can handle.
		now = b.now()
	}
	sh.last = now
	grown := sh.apply(hash, op, now)
	return grown != 0 && b.weight.Add(int64(grown)) > b.max && grown > 0
}

var _ backend.Backend = (*Backend)(nil)
