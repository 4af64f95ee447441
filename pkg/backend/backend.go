// Package backend is the seam between deciding and storing. A [Backend] holds counters and applies operations of pkg/engine to
// them, wherever they live: in memory (package memory) or in Redis (package redis).
//
// A caller makes an [Op] with the key of a descriptor and the limits of its rule, both from package descriptors, and a cost, and
// calls [Backend.Apply]. Then the op has a Decision, which admits the request if Admitted is 1, or an Err. example_test.go beside
// this file is a whole program.
//
// This package is part of the core.
package backend

import (
	"context"
	"errors"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Key names the counters of one descriptor. It is a hash of a canonical name (descriptors.Hash), so it has a fixed size whatever clients
// send, and different descriptors have different keys. The states of a descriptor's limits are told apart by
// [engine.Limit.Slot].
type Key [16]byte

// Backend stores counters. Every implementation has to pass the tests in backendtest, which describe the contract by
// example.
type Backend interface {
	// Apply decides every op and fills in its Decision or its Err, in as few round trips as the store allows. It keeps no
	// reference to ops. It is safe for concurrent use, and ops that share a key within one call are applied in order.
	Apply(ctx context.Context, ops []Op)
	// Close releases all resources. Apply must not be called afterwards.
	Close() error
}

// ErrUnsent is matched by an error of an op that was not sent to the store, so that nothing was counted and the op may
// be sent again. Other errors leave that open.
var ErrUnsent = errors.New("backend: not sent")

// ErrShed is matched by an error of an op that was not sent to the store because it would have waited there for longer
// than its caller can.
var ErrShed = errors.New("backend: no time")

// Mode says what an [Op] does.
type Mode uint8

// What an op does to its counter.
const (
	Take       Mode = iota // spend hits; for a cost of 0 only ask, as engine.Limits.Take does
	Peek                   // return what a take of the same cost would, and write nothing at all
	Refund                 // refund hits
	Reset                  // forget everything, unless a penalty runs
	Settle                 // end the reservation that the take names; Op.Reserve is not nil
	ForceReset             // forget everything, even while a penalty runs
)

// Resets reports whether m is one of the two resets.
func (m Mode) Resets() bool { return m == Reset || m == ForceReset }

// Flow is what an op is for, such as a domain. Where ops wait for a store, flows take turns.
type Flow uint32

// Wait says how long an op may wait for a slow store.
type Wait uint8

// How long an op may wait.
const (
	WaitShort Wait = iota // a fallback decides after a while
	WaitFull              // until the context ends: nothing decides instead of the store
)

// Lease says how many hits the near cache may fetch in advance for a counter.
type Lease int32

// Leases other than a number of hits.
const (
	LeaseAuto Lease = 0  // as the local rate suggests
	LeaseOff  Lease = -1 // none
)

// Origin identifies who made a decision.
type Origin uint8

// The origins.
const (
	FromStore     Origin = iota
	FromRejection        // a near cache, which remembers the rejection: nothing was spent, even if rejected hits count
	FromLease            // a near cache, from hits that it has leased
)

// Op is one operation on the counters of one descriptor.
type Op struct {
	Key Key // of descriptors.Hash
	// Name is the name that envoyproxy/ratelimit gives the counter, without the cache key prefix before it and the
	// start of the window after it: the domain, '_', and for each entry its key, '_', its value (or the pattern whose
	// threshold it shares) and '_'. It is set only for a backend that keeps counters under such names. The bytes belong
	// to the caller.
	Name    []byte
	Limits  engine.Limits // of descriptors.RateLimits.Limits; none of a rule that is unlimited, which needs no op
	Mode    Mode
	Take    engine.Take     // Cost is what a request costs, and Count is 1 for one request
	Penalty *engine.Penalty // nil if there is none
	Reserve *engine.Reserve // nil without reservations; else there is one limit and no penalty
	Lease   Lease
	Flow    Flow
	Wait    Wait
	Again   bool // the same request has asked about this counter before: a near cache does not count another lookup

	Decision engine.Decision // out
	Err      error           // out: why there is no decision; a dead shard fails only its own ops
	Origin   Origin          // out: who made Decision; a store leaves it as it is
}
