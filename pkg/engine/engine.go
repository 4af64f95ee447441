// Package engine decides rate limits: it holds the algorithms, and nothing else.
//
// Every algorithm is a pure function of (state, now, take) to (state, decision). Nothing in here reads a clock, takes a
// lock, starts a goroutine or logs, so the same arithmetic can be repeated elsewhere bit for bit; the scripts that run
// inside Redis do just that. All of it is done on integers: times are microseconds since the Unix epoch, and what does
// not divide evenly is carried along as an exact fraction.
//
// A caller keeps one [State] for each [Limit] of a counter, hands them to [Limits.Take], [Limits.Look], [Limits.Give] or
// [Limits.Reset] together with the time, and stores them again. A [Penalty] is a gate beside the counter and wraps
// the same four calls.
package engine

import "time"

// Micros is a time in microseconds since the Unix epoch, or a span of microseconds.
type Micros int64

// MaxHits is the largest number of hits that a counter, a cost or a sum of costs holds; what is more counts as this
// much. It is the largest integer that a double holds exactly, so that Lua counts alike.
const MaxHits = 1<<53 - 1

// Algorithm says how a limit counts.
type Algorithm uint8

// The algorithms; the README of the project tells when to choose which.
const (
	FixedWindow   Algorithm = iota // counts hits in windows that follow each other
	SlidingWindow                  // counts hits in the last window, cut into Precision sub-windows
	SlidingLog                     // remembers the time of each hit
	TokenBucket                    // a bucket of Burst tokens, refilled at the limit's rate
	LeakyBucket                    // a queue of Burst places that empties at the limit's rate
	Concurrency                    // counts what is held at the same time
)

// Align says when a fixed window begins.
type Align uint8

// Where fixed windows begin.
const (
	AlignClock Align = iota // at multiples of its length since the Unix epoch
	AlignFirst              // with the first hit that counts
)

// Limit is one limit: so many hits per window, counted by an algorithm. Fields that the algorithm has no use for are zero.
type Limit struct {
	Algorithm    Algorithm
	Align        Align     // of a fixed window
	Calendar     *Calendar // that a fixed window follows; nil without
	CountRefused bool      // refused hits are spent all the same
	Listed       bool      // one of several limits of a descriptor, which changes the name of its state and nothing else
	Precision    uint32    // sub-windows of a sliding window, 1 to 100
	Hits         uint64    // hits per Window, at most 2^32 − 1; 0 refuses everything
	Window       Micros    // at most 2^48; with a Calendar about as long as its windows, which decides nothing
	Burst        uint64    // capacity of a token bucket, length of a leaky bucket's queue
	Debt         uint64    // how far below zero a token bucket's balance may fall
	Initial      uint64    // tokens that a bucket not seen before holds; Burst where the rule does not say otherwise
	FillInterval Micros    // tokens come in steps at multiples of it since the Unix epoch; 0 is continuously

	prepared prepared
}

// Limits are the limits of a descriptor: one, or several that admit together or not at all.
type Limits []Limit

// Take is what a caller wants from a counter.
type Take struct {
	Cost   uint64 // hits that each request spends
	Count  uint64 // requests that wait for an answer
	Extra  uint64 // further hits of Cost each, wanted in advance; those refused never count
	Owner  string // who takes or releases slots of a concurrency limit with holders, else empty
	Window int64  // for Give: the start of the window the hits were spent in, in µs; 0 is the present one
}

// Decision is the answer to a [Take].
type Decision struct {
	Admitted   uint64        // how many of Count, then of Extra, were admitted
	Left       uint64        // hits left before this take, rounded down; the i-th admitted request leaves Left − i·Cost, or 0
	Strictest  int           // index of the limit that Left, ResetAfter and RetryAfter speak of
	ResetAfter time.Duration // until the window ends; the newest sub-window, stamp or slot is gone; the bucket is full, or the queue empty
	RetryAfter time.Duration // until this cost would pass; 0 where it passed, and ResetAfter where it never will
	Renewed    uint64        // slots among the cost that their owner held before: what a caller gives back is less these
	Wait       time.Duration // until the first admitted request's turn comes, in the leaky bucket with the longest queue
	Window     int64         // start of the fixed window the hits were spent in, the latest of a list's, in µs; 0 where there is none
	Penalty    time.Duration // what is left of a penalty that runs, else 0
}
