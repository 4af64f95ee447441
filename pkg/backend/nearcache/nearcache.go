// Package nearcache answers for hot keys in this process, in front of a backend that is a round trip away.
//
// A [Backend] consists of two parts that know nothing of each other's state. Leases answer first. Each part then learns from what
// the store answered.
//
// # Remembered rejections
//
// The type rejections (rejection.go, rejection_table.go) answers an op with a rejection by the store that still holds, without
// asking the store again. So a client that keeps hammering costs the store one call per second. It guarantees:
//
//   - A key that was rejected until some time T is rejected here until then, or for [Config.Rejection], whichever is shorter.
//     Both are counted from before the store was asked, and shortened by the drift of clocks.
//   - It never rejects what the store would admit, except if another replica gave hits back in that time. What this replica
//     does, a refund, a reset or a changed limit, ends the rejection at once, in whatever order answers arrive.
//   - It answers only ops that the rejection covers: the same rule, and a cost whose times are known. It reports the times that
//     the store would report.
//   - It answers no op whose rejection the store would have to count, and none with slots held at the same time or a reservation.
//   - When a rejection is forgotten although it still holds, one op asks the store. Others wait for its answer, for at most 10 ms.
//
// # Leased hits
//
// The type leases (lease*.go) answers takes and looks of hot keys with hits that were fetched in advance, without a round trip.
// Hits are leased while [Backend.Run] runs. It guarantees:
//
//   - The store has debited a hit before it is spent here, and it is spent at most once. So a replica that dies, hangs or loses a
//     reply can only leave hits unused. A fixed window never admits more than its limit. A token bucket admits at most the hits
//     that were leased when a span began on top of its own.
//   - Hits are spent within their window. They end two seconds after the last refill.
//   - What was not spent is refunded: when its key is idle for half a second, has to make room or comes with another rule, when a
//     take needs more than is held, and when Run ends. It is refunded once, and only to the window or bucket that was debited.
//   - A lease is at most 1 % of its limit, or what the rule says, and at most 1/16 of the hits left. A replica holds at most two.
//     Cold keys, small limits and the last hits of every limit are left to the store.
//   - The hits reported as left do not rise within a window, unless hits were refunded.
//   - A take that finds a refill in progress waits for it, for at most 10 ms.
//
// # Bounds
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
