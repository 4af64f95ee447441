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

// Parts of a caller's time that are reserved, and their bounds.
const (
	margin   = 2 * time.Millisecond // for returning the answer
	least    = time.Millisecond     // minimum budget for sending anything
	shortest = 5 * time.Millisecond // minimum budget of a caller whose giving up counts against a server
)

// RoundTrip returns the maximum duration of a round trip. opTimeout, here and below, is the configured time-out of operations, or 0.
func RoundTrip(opTimeout time.Duration) time.Duration { return cmp.Or(opTimeout, DefaultOpTimeout) }

// Budget returns the time that a caller can wait from now on, and whether that is enough to send anything. The budget ends 2 ms before
// the caller's deadline, or after the time-out of operations if that is earlier; without either, it is [DefaultOpTimeout].
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

// TooSlow reports whether an answer after the time took counts against the server, given that a caller with the given budget has given
// up.
func TooSlow(took, budget time.Duration) bool { return took > max(budget, shortest) }
