// Package engine implements the rate-limiting algorithms, and nothing else.
//
// Every algorithm is a pure function of (state, now, take) to (state, decision). Nothing here reads a clock, takes a lock, starts a
// goroutine or logs. So other code can repeat the same arithmetic bit for bit, as the scripts inside Redis do. All arithmetic is on
// integers: times are microseconds since the Unix epoch, and whatever does not divide evenly is kept as an exact fraction.
//
// A caller keeps one [State] for each [Limit] of a counter. It passes the states to [Limits.Take], [Limits.Peek], [Limits.Refund] or
// [Limits.Reset] together with the time, and stores them again afterwards. A [Penalty] is a gate in front of the counter and wraps
// the same four calls. A [Reserve] stands beside the counter and adds a fifth call, which settles reservations.
//
// This package is part of the core.
package engine

import "time"

// Micros is a time in microseconds since the Unix epoch, or a span of microseconds.
type Micros int64

// MaxHits is the largest number of hits that a counter, a cost or a sum of costs can hold; anything larger is clamped
// to it. It is 2^53 − 1, up to which a double holds every integer exactly, so that Lua counts the same way.
const MaxHits = 1<<53 - 1

// Never is the [Decision.RetryAfter] of a cost above [Limit.MaxCost], which is never admitted. It is longer than any other.
const Never = MaxHits * time.Microsecond

// Align says when a fixed window begins.
type Align uint8

// Where fixed windows begin.
const (
	AlignClock Align = iota // at multiples of the window's length since the Unix epoch
	AlignFirst              // at the first hit that counts
)

// Limit is one limit: a number of hits per window, counted by an algorithm. Fields that the algorithm does not use are
// zero.
type Limit struct {
	Algorithm    Algorithm
	Align        Align     // when a fixed window begins
	Calendar     *Calendar // that a fixed window follows; nil if it follows none
	CountRefused bool      // rejected hits are spent too
	LateCharge   bool      // hits are charged for requests that have already run; this is for reports and changes no decision
	Listed       bool      // one of several limits of a descriptor; this changes the name of its state and nothing else
	Precision    uint32    // sub-windows of a sliding window, 1 to 100
	Hits         uint64    // hits per Window, at most 2^32 − 1; 0 rejects everything
	Window       Micros    // at most 2^48; with a Calendar, the nominal length, which affects no decision
	Burst        uint64    // capacity of a token bucket, length of a leaky bucket's queue
	Debt         uint64    // how far below zero a token bucket's balance may fall
	Initial      uint64    // tokens in a bucket not seen before; Burst unless the rule says otherwise
	FillInterval Micros    // tokens arrive in steps, at multiples of it since the Unix epoch; 0 means continuously

	prepared prepared
}

// Capacity returns how many hits a counter that was not used has left.
func (l *Limit) Capacity() uint64 {
	if ParamBurst.TakenBy(l.Algorithm) {
		return l.Burst
	}
	return l.Hits
}

// MaxCost returns the largest cost that is ever admitted, 0 if none is.
func (l *Limit) MaxCost() uint64 {
	if l.Hits == 0 {
		return 0
	}
	return l.Capacity() + l.Debt
}

// Limits are the limits of a descriptor: one, or several that admit together or not at all.
type Limits []Limit

// Take is what a caller wants from a counter.
type Take struct {
	Cost   uint64 // hits that each request spends
	Count  uint64 // requests to decide, of Cost hits each: 1, unless several that wait are decided together
	Extra  uint64 // further requests, of Cost hits each, to admit in advance; rejected ones never count
	Owner  string // the caller that takes or releases slots of a concurrency limit with holders; otherwise empty
	Window int64  // for Refund: the start of the window the hits were spent in, in µs; 0 means the current one

	Reservation ReservationID // to take or to settle, beside a [Reserve]; otherwise zero
}

// Decision is the answer to a [Take].
type Decision struct {
	Admitted   uint64        // how many of Count, then of Extra, were admitted
	Left       uint64        // hits left before this take, rounded down; the i-th admitted request leaves Left − i·Cost, or 0
	Strictest  int           // index of the limit that Left, ResetAfter and RetryAfter refer to
	ResetAfter time.Duration // until the window ends; the newest sub-window, stamp or slot expires; the bucket is full, or the queue is empty
	RetryAfter time.Duration // until this cost would be admitted; 0 if it was, and Never if it never will be
	Renewed    uint64        // slots among the cost that the owner already held; a caller that refunds must not give these
	Wait       time.Duration // until the first admitted request's turn, in the leaky bucket with the longest queue
	Window     int64         // start of the fixed window the hits were spent in, in µs, the latest one for a list; 0 if there is none
	Penalty    time.Duration // time left of a running penalty, else 0

	// Beside a [Reserve].
	Reserved    uint64             // hits of open reservations, after the call
	Difference  int64              // of a settlement: hits charged beyond the reservation or, if negative, refunded
	Expired     uint32             // reservations that the call ended because they had expired
	Reservation ReservationOutcome // of the one that the take names
}
