// Package backend defines the interface between decisions and storage. A [Backend] holds counters and applies operations of pkg/engine to
// them, in memory (package memory), in Redis (package redis) or in another store.
//
// A caller builds an [Op] from a cost and from the key of a descriptor and the limits of its rule, both of package descriptors. It then
// calls [Backend.Apply], which sets the Op's Decision or its Err. The request is admitted if Decision.Admitted is 1. The package example
// is a complete program.
//
// This package is part of the core.
package backend

import (
	"context"
	"errors"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Key identifies the counters of one descriptor. It is the hash of a canonical name (descriptors.Hash), so its size is fixed regardless
// of the request, and different descriptors have different keys. [engine.Limit.Slot] distinguishes the states of a descriptor's limits.
type Key [16]byte

// Backend stores counters. Implementations must pass the tests in package backendtest.
type Backend interface {
	// Apply decides every op and sets its Decision or its Err, in as few round trips as the store allows. It does not retain ops. Ops with
	// the same key are applied in order. Apply is safe for concurrent use.
	Apply(ctx context.Context, ops []Op)
	// Close releases all resources. Apply must not be called afterwards.
	Close() error
}

// ErrUnsent matches the error of an op that was not sent to the store. Nothing was counted, so the op may be retried. After any other
// error, the op may have been counted.
var ErrUnsent = errors.New("backend: not sent")

// ErrShed matches the error of an op that was not sent to the store because its wait would have exceeded the caller's deadline.
var ErrShed = errors.New("backend: no time")

// Mode is the kind of an operation.
type Mode uint8

// The operations on a counter.
const (
	Take       Mode = iota // consume hits; a cost of 0 only checks, as in engine.Limits.Take
	Peek                   // return the result of a take of the same cost, and write nothing
	Refund                 // refund hits
	Reset                  // clear the counter, unless a penalty runs
	Settle                 // end the reservation named by the take; requires Op.Reserve
	ForceReset             // clear the counter, even while a penalty runs
)

// Resets reports whether m is Reset or ForceReset.
func (m Mode) Resets() bool { return m == Reset || m == ForceReset }

// Flow identifies the origin of an op, such as a domain. Flows take turns if ops wait for a store.
type Flow uint32

// Wait is the patience of an op with a slow store.
type Wait uint8

// The kinds of patience.
const (
	WaitShort Wait = iota // give up early, because a fallback decides then
	WaitFull              // wait until the context ends, because there is no fallback
)

// Lease is the number of hits of a counter that a near cache may take in advance.
type Lease int32

// Leases other than a number of hits.
const (
	LeaseAuto Lease = 0  // according to the local rate
	LeaseOff  Lease = -1 // no lease
)

// Origin identifies the source of a decision.
type Origin uint8

// The origins.
const (
	FromStore     Origin = iota
	FromRejection        // a near cache that remembers a rejection: nothing was consumed, even if rejected hits count
	FromLease            // a near cache, from leased hits
)

// Op is one operation on the counters of one descriptor.
type Op struct {
	Key Key // from descriptors.Hash
	// Name is envoyproxy/ratelimit's name of the counter, without its prefix (the cache key prefix) and its suffix (the start of the
	// window): the domain, '_', and for each entry its key, '_', its value (or the pattern whose threshold it shares) and '_'. It is set
	// only for a backend that uses these names for its counters. The caller owns the bytes.
	Name    []byte
	Limits  engine.Limits // from descriptors.RateLimits.Limits; an unlimited rule has none and needs no op
	Mode    Mode
	Take    engine.Take     // Cost is the cost of a request; Count is 1 for one request
	Penalty *engine.Penalty // nil if there is none
	Reserve *engine.Reserve // nil without reservations; requires a single limit and no penalty
	Lease   Lease
	Flow    Flow
	Wait    Wait
	Again   bool // the same request has asked about this counter before: a near cache does not count another lookup

	Decision engine.Decision // out
	Err      error           // out: the reason if there is no decision; a failed shard fails only its own ops
	Origin   Origin          // out: source of Decision; stores do not set it
}
