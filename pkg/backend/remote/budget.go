package remote

import (
	"cmp"
	"context"
	"time"
)

// Defaults of the configurations of stores.
const (
	DefaultOpTimeout   = 250 * time.Millisecond
	DefaultDialTimeout = 250 * time.Millisecond
)

// What a caller holds back of its time.
const (
	margin   = 2 * time.Millisecond // for the way back
	least    = time.Millisecond     // below which nothing is sent
	shortest = 5 * time.Millisecond // a caller that waits for less than this says nothing about a server by giving up
)

// RoundTrip returns how long a round trip may take. The time-out of operations, here and below, is that of the
// configuration, and 0 if it has none.
func RoundTrip(opTimeout time.Duration) time.Duration { return cmp.Or(opTimeout, DefaultOpTimeout) }

// Budget returns how long a caller can wait from now on, and whether that is enough to send anything: until 2 ms before
// its deadline, but no longer than the time-out of operations; without either, for [DefaultOpTimeout].
func Budget(ctx context.Context, now time.Time, opTimeout time.Duration) (budget time.Duration, enough bool) {
	budget = RoundTrip(opTimeout)
	if deadline, ok := ctx.Deadline(); ok {
		left := deadline.Sub(now) - margin
		if opTimeout == 0 || left < budget {
			budget = left
		}
	}
	return budget, budget >= least && ctx.Err() == nil
}

// TooSlow reports whether an answer that took so long counts against the server, given that a caller with the given
// budget has given up on it.
func TooSlow(took, budget time.Duration) bool { return took > max(budget, shortest) }
