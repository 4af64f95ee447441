// Package nearcache answers for hot keys in this process, in front of a backend that is a round trip away.
//
// It remembers rejections. A key that was rejected until some time T is rejected here until then, or for a second,
// whichever is shorter, without asking the store again; so a client that keeps hammering costs the store one call per
// second. It never rejects what the store would admit, except if another replica gave hits back within that second:
// what this replica knows of, a refund, a reset or a changed limit, ends the memory at once. See [Config.Rejection].
//
// It also leases hits. For a key that is asked for often, hits are fetched in advance, which later requests spend
// without a round trip. They are debited in the store before anyone may spend them, so a replica that dies, hangs or
// loses a reply can only leave hits unused; see lease.go. Hits are leased while [Backend.Run] runs. What was not spent
// goes back once a key is idle or has to make room, or when Run ends.
//
// Memory is bounded by [Config.Keys] whatever clients send, and keys that come once do not push out those that come
// often. Expiry is checked on access.
//
// This package is part of the core.
//
// Experimental: this package may change with every version.
package nearcache

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Defaults of [Config].
const (
	DefaultKeys      = 100_000
	DefaultRejection = time.Second
)

// UntilEnd is a [Config.Rejection] by which rejections are remembered for as long as they last, and those of a clock-aligned
// fixed window that counts rejected hits whatever their cost, as in envoyproxy/ratelimit's local cache: such a window
// rejects everything until it ends, unless hits are refunded, which is not seen if another replica does it.
const UntilEnd time.Duration = math.MaxInt64

// Config says what is remembered and leased. Its zero value works.
type Config struct {
	// Keys is for how many keys rejections are remembered, and for how many hits are leased, at most: [DefaultKeys] if 0,
	// none if negative. The minimum is 2.
	Keys int
	// Rejection is how long a rejection is remembered at most, counted from before the store was asked: [DefaultRejection] if
	// 0, not at all if negative. A rejection is never remembered for longer than the store said it would last. See [UntilEnd].
	Rejection time.Duration
	// NoLeases turns leases off, whatever rules say.
	NoLeases bool
	// Budget bounds how long a call of Apply may take, from its beginning, if it asks the store after it has waited for
	// hits that did not come. 0 leaves that to the store.
	Budget time.Duration
	// Now returns the time, in microseconds since any moment. If nil, a monotonic clock is used. It is called
	// concurrently. It may lose up to 200 µs per second against the store's clock.
	Now func() engine.Micros
}

// Stats counts what a [Backend] has done since the start, and says how full it is.
type Stats struct {
	Hits       uint64 // operations answered without asking the store: rejected from memory, or served by a lease
	Rejections uint64 // those among Hits that were rejected from memory
	Misses     uint64 // takes and checks for which no rejection was remembered, except those with [backend.Op.Again]
	Expired    uint64 // rejections found to have ended
	Entries    int    // rejections remembered, plus keys with a lease
	Evictions  uint64 // keys forgotten to make room

	Remembered int    // those among Entries that are rejections, including those that have ended since
	Forgotten  uint64 // those among Evictions that were rejections

	// Hits that were leased, which is to say debited in the store, and what has become of them. While nothing dies,
	// Leased is the sum of Spent, Returned, Full, Held, Ended, Reset and Failed.

	Leased   uint64
	Spent    uint64
	Returned uint64 // refunded
	Full     uint64 // refunded to a bucket that is full with them: some of them may have been more than it holds
	Held     uint64 // to be spent, or on their way back
	Ended    uint64 // ended with their window
	Reset    uint64 // of counters that were reset
	Failed   uint64 // refunded by calls that failed, and so perhaps not refunded
	Unspent  uint64 // the cost of leasing: the sum of Ended, Reset and Failed
}

// Backend is a [backend.Backend] over another one.
type Backend struct {
	store      backend.Backend
	now        func() engine.Micros
	seed       backend.Seed
	rejections *rejections // nil if rejections are not remembered
	leases     *leases     // nil if hits are not leased
	budget     time.Duration
	calls      sync.Pool // of *call

	life task.Life
}

// New returns a Backend over store, which it closes when it is closed.
func New(store backend.Backend, c Config) *Backend {
	if c.Keys == 0 {
		c.Keys = DefaultKeys
	}
	if c.Rejection == 0 {
		c.Rejection = DefaultRejection
	}
	if c.Now == nil {
		start := time.Now()
		c.Now = func() engine.Micros { return micros(time.Since(start)) }
	}
	b := &Backend{
		store:  store,
		now:    c.Now,
		budget: c.Budget,
		seed:   backend.NewSeed(),
		calls:  sync.Pool{New: func() any { return new(call) }},
	}
	if c.Keys > 0 && c.Rejection > 0 {
		b.rejections = newRejections(c.Keys, micros(c.Rejection))
	}
	if c.Keys > 0 && !c.NoLeases {
		if b.rejections != nil {
			store = observed{store, b}
		}
		b.leases = newLeases(store, c.Keys, c.Now)
	}
	return b
}

// Run leases hits until ctx ends or b is closed. At the end it refunds what was not spent, within two seconds. The
// store must serve until Run has returned.
func (b *Backend) Run(ctx context.Context) error {
	return b.life.Run(ctx, func(ctx context.Context) {
		if b.leases == nil {
			<-ctx.Done()
			return
		}
		b.leases.run(ctx)
	})
}

// String names the task.
func (b *Backend) String() string { return "near cache" }

// Close ends Run, waits until it has returned, and closes the store.
func (b *Backend) Close() error {
	b.life.End()
	return b.store.Close()
}

// Via returns a Backend that shares what b knows, and asks another store with the same counters. Closing it closes that store.
func (b *Backend) Via(store backend.Backend) backend.Backend { return &via{store, b} }

// Stats returns what b has done. It takes every shard's lock in turn.
func (b *Backend) Stats() Stats {
	var s Stats
	if b.rejections != nil {
		b.rejections.count(&s)
	}
	if b.leases != nil {
		b.leases.count(&s)
	}
	return s
}

// shardsFor returns the number of shards for that many keys, a power of two. Each shard has room for some keys, so that there is a
// choice when one has to go.
func shardsFor(keys int) int {
	const most, keysEach = 64, 64
	n := 1
	for n < most && 2*n*keysEach <= keys {
		n *= 2
	}
	return n
}

func micros(d time.Duration) engine.Micros { return engine.Micros(d / time.Microsecond) }

var _ backend.Backend = (*Backend)(nil)
