// Package nearcache answers for hot keys in this process, in front of a backend that is a round trip away.
//
// It remembers refusals. A key that was refused until some time T is refused here until then, or for a second, whichever
// is first, without asking the store again; so a client that keeps hammering costs the store one call per second. It never
// refuses what the store would admit, but for what another replica gave back within that second: what this replica knows,
// a give-back, a reset or a limit that has changed, ends the memory at once. See [Config.Refusal].
//
// And it leases hits. A key that is asked for often has hits fetched in advance, which later requests spend without a round
// trip. They are debited in the store before anyone may spend them, so a replica that dies, hangs or loses a reply can only
// leave hits unused; see lease.go. While [Backend.Run] runs hits are leased, and what was not spent goes back once a key
// has cooled down, has to make room, or Run ends.
//
// Memory is bounded by [Config.Keys] whatever clients send, and keys that come once do not push out those that come
// often. What has expired is found expired when it is looked at.
package nearcache

import (
	"context"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// What holds where [Config] says nothing.
const (
	DefaultKeys    = 100_000
	DefaultRefusal = time.Second
)

// Config says what is remembered. Its zero value works.
type Config struct {
	// Keys is how many keys' refusals are remembered at most, and of how many hits are leased: [DefaultKeys] if 0, none if
	// negative. The least is 2.
	Keys int
	// Refusal is for how long a refusal is remembered at most, counted from before the store was asked: [DefaultRefusal]
	// if 0, not at all if negative. It is never remembered for longer than the store said that it lasts, so that a very
	// long time here means just until then; envoyproxy/ratelimit's local cache does that.
	Refusal time.Duration
	// NoLeases has no hits leased, whatever rules say.
	NoLeases bool
	// Budget is for how long a call of Apply may ask the store after it has waited for hits that did not come, counted from
	// its beginning. 0 leaves that to the store.
	Budget time.Duration
	// Now is the time, in microseconds since any moment: that of a clock that only goes forward if nil. It is called
	// concurrently. It may lose up to 200 µs a second against the store's.
	Now func() engine.Micros
}

// Stats counts what a [Backend] did since the start, and tells how full it is.
type Stats struct {
	Hits      uint64 // operations answered without asking the store: refused from memory, or served by a lease
	Refusals  uint64 // of them those refused because a refusal was remembered
	Misses    uint64 // takes and looks that no refusal was remembered for
	Expired   uint64 // refusals found to have ended
	Entries   int    // refusals remembered, those that have ended since included, and keys that are leased
	Evictions uint64 // keys forgotten to make room

	// Hits of counters that were leased, and what has become of them; what is left of the sum is leased still.

	Leased, Spent, Returned uint64
	Unspent                 uint64 // neither spent nor returned: what leasing has cost
}

// Backend is a [backend.Backend] over another one.
type Backend struct {
	store    backend.Backend
	now      func() engine.Micros
	seed     [2]uint64 // so that nobody outside can tell which keys meet in one place
	refusals *refusals // nil: none are remembered
	leases   *leases   // nil: none are
	budget   time.Duration
	calls    sync.Pool // of *call

	life backend.Life
}

// New returns a Backend over store, which it closes when it is closed.
func New(store backend.Backend, c Config) *Backend {
	if c.Keys == 0 {
		c.Keys = DefaultKeys
	}
	if c.Refusal == 0 {
		c.Refusal = DefaultRefusal
	}
	if c.Now == nil {
		start := time.Now()
		c.Now = func() engine.Micros { return micros(time.Since(start)) }
	}
	b := &Backend{
		store:  store,
		now:    c.Now,
		budget: c.Budget,
		seed:   [2]uint64{rand.Uint64(), rand.Uint64()},
		calls:  sync.Pool{New: func() any { return new(call) }},
	}
	if c.Keys > 0 && c.Refusal > 0 {
		b.refusals = newRefusals(c.Keys, micros(c.Refusal))
	}
	if c.Keys > 0 && !c.NoLeases {
		b.leases = newLeases(store, c.Keys, c.Now, b.refusals)
	}
	return b
}

// Run lets hits be leased until ctx ends or b is closed, and gives back what was not spent, within two seconds at the end.
// The store must serve until Run has returned.
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

// Close ends Run, waits for its end, and closes the store.
func (b *Backend) Close() error {
	b.life.End()
	return b.store.Close()
}

// Stats counts what b did. It takes every shard's lock in turn.
func (b *Backend) Stats() Stats {
	var s Stats
	if b.refusals != nil {
		b.refusals.count(&s)
	}
	if b.leases != nil {
		b.leases.count(&s)
	}
	return s
}

// hash spreads keys over shards and epochs. Keys are hashes already, but of values that clients choose; the seeds keep
// them from choosing values that meet.
func (b *Backend) hash(k *backend.Key) uint64 {
	hi, lo := bits.Mul64(binary.LittleEndian.Uint64(k[:8])^b.seed[0], binary.LittleEndian.Uint64(k[8:])^b.seed[1])
	return hi ^ lo
}

func micros(d time.Duration) engine.Micros { return engine.Micros(d / time.Microsecond) }

var _ backend.Backend = (*Backend)(nil)

// tally is a count that shards keep apart, so that they do not write to one cache line.
type tally struct {
	atomic.Uint64

	_ [56]byte
}
