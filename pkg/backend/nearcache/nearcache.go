// Package nearcache decides ops for hot keys in this process, in front of a backend behind a network.
//
// A [Backend] consists of two parts with independent states. It asks leases first, and rejections second. Both parts then learn from the
// store's answers.
//
// # Remembered rejections
//
// The type rejections (rejection.go, rejection_table.go) answers an op with an earlier rejection by the store that is still valid,
// without asking the store again. So a client far over its limit costs the store one call per second. It guarantees:
//
//   - If the store rejected a key until some time T, the rejection is remembered until T, or for [Config.Rejection] if that is shorter.
//     Both count from before the store was asked, minus the drift of clocks.
//   - It never rejects an op that the store would admit, unless another replica has refunded hits in the meantime. Refunds, resets and
//     changed limits of this replica end the rejection immediately, in whatever order answers arrive.
//   - It answers only ops that the rejection covers: those with the same rule, and with a cost for which the times are known. It reports
//     the same times as the store.
//   - It answers no op whose rejection the store would have to count, and none on a concurrency limit or with a reservation.
//   - If a rejection expires here before T, one op asks the store. Others wait for its answer, for at most 10 ms.
//
// # Leased hits
//
// The type leases (lease*.go) answers takes and checks of hot keys from hits fetched in advance, without a round trip. Hits are leased
// while [Backend.Run] runs. It guarantees:
//
//   - The store debits a hit before it is spent here, and it is spent at most once. So a replica that dies, hangs or loses a reply can
//     only leave hits unused. A fixed window never admits more than its limit. A token bucket admits at most its own hits plus those that
//     were leased at the start of a span.
//   - Hits are spent within their window, and expire two seconds after the last refill.
//   - Unspent hits are refunded when their key is idle for half a second, is evicted or has a new rule, when a take needs more hits than
//     are held, and when Run ends. They are refunded once, and only to the window or bucket that was debited.
//   - A lease is at most 1 % of its limit, or the number in the rule, and at most 1/16 of the hits left. A replica holds at most two. The
//     store decides on cold keys, small limits and the last hits of every limit.
//   - The reported number of hits left does not rise within a window, unless hits were refunded.
//   - A take during a refill waits for it, for at most 10 ms.
//
// # Bounds
//
// [Config.Keys] bounds memory, whatever clients send, and keys that come once do not evict frequent keys. Expiry is checked on access.
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

// UntilEnd is a [Config.Rejection] that remembers rejections as long as they are valid. A clock-aligned fixed window that counts rejected
// hits is then remembered for all costs, as in envoyproxy/ratelimit's local cache: it rejects everything until it ends, unless hits are
// refunded, and refunds by other replicas go unnoticed.
const UntilEnd time.Duration = math.MaxInt64

// Config configures a Backend. The zero value is valid.
type Config struct {
	// Keys is the maximum number of keys with a remembered rejection, and of keys with a lease: [DefaultKeys] if 0, none if negative. The
	// minimum is 2.
	Keys int
	// Rejection is the maximum time for which a rejection is remembered, counted from before the store was asked: [DefaultRejection] if
	// 0, no time if negative. A rejection is never remembered longer than it is valid. See [UntilEnd].
	Rejection time.Duration
	// NoLeases disables leases, regardless of the rules.
	NoLeases bool
	// Budget bounds the duration of an Apply that asks the store after waiting for hits without success, counted from the beginning. 0
	// leaves the bound to the store.
	Budget time.Duration
	// Now returns the time in microseconds since a fixed time. It is called concurrently. It may run up to 200 µs per second slower than
	// the store's clock. Nil means the monotonic clock.
	Now func() engine.Micros
}

// Stats contains statistics of a [Backend] since its start.
type Stats struct {
	Hits       uint64 // operations decided without the store, by a rejection or a lease
	Rejections uint64 // part of Hits that a rejection decided
	Misses     uint64 // takes and checks without a remembered rejection, except those with [backend.Op.Again]
	Expired    uint64 // rejections that were found expired
	Entries    int    // remembered rejections plus keys with a lease
	Evictions  uint64 // keys evicted

	Remembered int    // part of Entries that are rejections, including expired ones
	Forgotten  uint64 // part of Evictions that were rejections

	// Hits that were leased, so debited in the store, and their fate. Unless replicas die, Leased is the sum of Spent, Returned, Full,
	// Held, Ended, Reset and Failed.

	Leased   uint64
	Spent    uint64
	Returned uint64 // refunded
	Full     uint64 // refunded to a bucket that was full afterwards, and so may have discarded some
	Held     uint64 // held, or in a refund in progress
	Ended    uint64 // expired with their window
	Reset    uint64 // of counters that were reset
	Failed   uint64 // refunded by calls that failed, so possibly not refunded
	Unspent  uint64 // cost of leasing: the sum of Ended, Reset and Failed
}

// Backend is a [backend.Backend] in front of another one.
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

// New returns a Backend in front of store. Close closes store.
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

// Run leases hits until ctx ends or b is closed. Then it refunds unspent hits, within two seconds. The store must remain usable until Run
// returns.
func (b *Backend) Run(ctx context.Context) error {
	return b.life.Run(ctx, func(ctx context.Context) {
		if b.leases == nil {
			<-ctx.Done()
			return
		}
		b.leases.run(ctx)
	})
}

// String returns the name of the task.
func (b *Backend) String() string { return "near cache" }

// Close ends Run, waits until it returns, and closes the store.
func (b *Backend) Close() error {
	b.life.End()
	return b.store.Close()
}

// Via returns a Backend that shares the state of b but uses another store with the same counters. Closing it closes that store.
func (b *Backend) Via(store backend.Backend) backend.Backend { return &via{store, b} }

// Stats returns the statistics of b. It locks each shard in turn.
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

// shardsFor returns the number of shards for a number of keys, a power of two. Each shard has room for several keys, so that evictions
// have a choice.
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
