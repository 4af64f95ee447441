// Package backend is the seam between deciding and storing: a [Backend] holds counters and applies operations of
// pkg/engine to them, wherever they live.
package backend

import (
	"context"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Key names the counters of one descriptor. It is a hash of a canonical name, so it has one size whatever clients send,
// and two descriptors have two keys. What belongs to one limit of the descriptor is told apart by [engine.Limit.Slot].
type Key [16]byte

// Backend stores counters. Implementations are driven by the tests in backendtest, which describe its contract by example.
type Backend interface {
	// Apply decides every op and fills in its Decision or its Err, in as few round trips as the store allows. It keeps no
	// reference to ops. It is safe for concurrent use, and ops that share a key within one call are applied in order.
	Apply(ctx context.Context, ops []Op)
	// Close releases what the backend holds. Apply must not be called afterwards.
	Close() error
}

// Mode says what an [Op] does.
type Mode uint8

// What an op does to its counter.
const (
	Take  Mode = iota // spend hits
	Look              // see what a take of the same cost would meet, and write nothing
	Give              // give hits back
	Reset             // forget everything
)

// Lease says how many hits the near cache may fetch in advance for a counter.
type Lease int32

// Leases that are not a number.
const (
	LeaseAuto Lease = 0  // as the local rate suggests
	LeaseOff  Lease = -1 // none
)

// Op is one operation on the counters of one descriptor.
type Op struct {
	Key Key
	// Name is what envoyproxy/ratelimit names the counter, but for the cache key prefix before it and the start of the
	// window behind it: the domain, '_', and for each entry its key, '_', its value (or the pattern whose threshold it
	// shares) and '_'. It is filled in only for a backend that keeps counters under such names; it belongs to the caller.
	Name    []byte
	Limits  engine.Limits
	Mode    Mode
	Take    engine.Take
	Penalty *engine.Penalty // nil without
	Lease   Lease
	Force   bool // for Reset: also while a penalty runs

	Decision engine.Decision // out
	Err      error           // out: why there is no decision; a dead shard fails only its own ops
	// Remembered, out, tells that Decision is a refusal that a near cache remembered: the store was not asked and nothing
	// was spent, also where refused hits count. A backend without a memory of its own leaves it alone, so callers that use
	// an op twice clear it.
	Remembered bool
}
