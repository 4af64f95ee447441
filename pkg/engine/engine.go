// Package engine implements the rate-limiting algorithms.
//
// Every algorithm is a pure function from (state, now, take) to (state, decision). The package reads no clock, takes no lock, starts no
// goroutine and does not log. So other implementations, such as the scripts inside Redis, can reproduce its results bit for bit. All
// arithmetic uses integers: times are microseconds since the Unix epoch, and remainders of divisions are kept as exact fractions.
//
// A caller keeps one [State] for each [Limit] of a counter. It passes the states and the time to [Limits.Take], [Limits.Peek],
// [Limits.Refund] or [Limits.Reset], and stores the states afterwards. A [Penalty] is a gate in front of the counter; it wraps the same
// four calls. A [Reserve] adds reservations to the counter, and a fifth call that settles them.
//
// This package is part of the core.
package engine

import "time"

// Micros is a time in microseconds since the Unix epoch, or a duration in microseconds.
type Micros int64

// MaxHits is the maximum of a counter, of a cost and of a sum of costs; larger values are clamped to it. It is 2^53 − 1, so a double
// holds every value exactly and Lua computes the same results.
const MaxHits = 1<<53 - 1

// Never is the [Decision.RetryAfter] of a cost above [Limit.MaxCost], which is never admitted, and of a window that never ends. It exceeds
// every other value.
const Never = MaxHits * time.Microsecond

// Align determines when fixed windows begin.
type Align uint8

// Alignments of fixed windows.
const (
	AlignClock Align = iota // at multiples of the window's length since the Unix epoch
	AlignFirst              // at the first hit that counts
)

// Limit is a number of hits per window, counted by an algorithm. Fields that the algorithm does not use are zero.
type Limit struct {
	Algorithm    Algorithm
	Align        Align     // start of fixed windows
	Calendar     *Calendar // calendar of a fixed window; nil if none
	CountRefused bool      // rejected hits are consumed too
	LateCharge   bool      // hits are charged for requests that have already run; for reports, without effect on decisions
	Listed       bool      // one of several limits of a descriptor; only changes the name of its state
	Precision    uint32    // sub-windows of a sliding window, 1 to 100
	Hits         uint64    // hits per Window, at most [Algorithm.MostHits]; 0 rejects everything
	Window       Micros    // at most 2^48; with a Calendar, the nominal length, which affects no decision
	Burst        uint64    // capacity of a token bucket, length of a leaky bucket's queue
	Debt         uint64    // how far below zero a token bucket's balance may fall
	Initial      uint64    // tokens in a new bucket; by default Burst
	FillInterval Micros    // tokens arrive in steps, at multiples of this since the Unix epoch; 0 means continuously

	prepared prepared
}

// Capacity returns the hits left of an unused counter.
func (l *Limit) Capacity() uint64 {
	if ParamBurst.TakenBy(l.Algorithm) {
		return l.Burst
	}
	return l.Hits
}

// MaxCost returns the largest cost that can be admitted, or 0 if there is none.
func (l *Limit) MaxCost() uint64 {
	if l.Hits == 0 {
		return 0
	}
	return l.Capacity() + l.Debt
}

// Limits are the limits of a descriptor. If there are several, they admit together or not at all.
type Limits []Limit

// Take describes a request for hits of a counter.
type Take struct {
	Cost   uint64 // hits per request
	Count  uint64 // requests to decide, of Cost hits each; more than 1 if waiting requests are decided together
	Extra  uint64 // additional requests, of Cost hits each, to admit in advance; rejected ones never count
	Owner  string // holder that takes or releases slots of a concurrency limit; otherwise empty
	Window int64  // for Refund: start of the window in which the hits were consumed, in µs; 0 means the current one

	Reservation ReservationID // reservation to open or to settle, with a [Reserve]; otherwise zero
}

// Decision is the result of a [Take].
type Decision struct {
	Admitted   uint64        // number admitted of Count and then of Extra
	Left       uint64        // hits left before this take, rounded down; the i-th admitted request leaves Left − i·Cost, or 0
	Strictest  int           // index of the limit that Left, ResetAfter and RetryAfter describe
	ResetAfter time.Duration // until the window ends; the newest sub-window, stamp or slot expires; the bucket is full; or the queue is empty
	RetryAfter time.Duration // until this cost would be admitted; 0 if it was, Never if it cannot be
	Renewed    uint64        // slots of the cost that the owner already held, which must not be refunded
	Wait       time.Duration // until the first admitted request's turn in the leaky bucket with the longest queue
	Window     int64         // start of the fixed window in which the hits were consumed, in µs, the latest one for a list; 0 if none
	Penalty    time.Duration // remaining time of a running penalty; otherwise 0

	// Set only with a [Reserve].
	Reserved    uint64             // hits of open reservations after the call
	Difference  int64              // of a settlement: hits charged beyond the reservation or, if negative, refunded
	Expired     uint32             // reservations that expired and that the call ended
	Reservation ReservationOutcome // outcome of the take's reservation
}
