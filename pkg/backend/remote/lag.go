package remote

import (
	"context"
	"sync/atomic"
	"time"
)

// Lag measures how late timers of this process fire because other processes use its processors. An answer to a caller is delayed that
// much twice: before it is written, and before it is sent. The zero value expects no lag. The methods are safe for concurrent use.
type Lag struct{ ns atomic.Int64 }

// A Lag is the greatest recent lag, within bounds.
const (
	mostLag = 5 * time.Millisecond // so that a process that was suspended for longer does not end all calls early
	recent  = 256                  // a high lag decays over about this many timers
	lags    = 2                    // delays between the end of a caller's wait and sending its answer
)

// Note records the lag of a timer.
func (l *Lag) Note(late time.Duration) {
	n, old := int64(min(late, mostLag)), l.ns.Load()
	if n < old {
		n = old - (old-n)/recent
	}
	l.ns.Store(n)
}

// Leave returns the time at which a caller with the given budget (see [Budget]) must stop waiting so that its answer meets the deadline.
// It leaves the caller at least half of its budget.
func (l *Lag) Leave(ctx context.Context, now time.Time, budget time.Duration) time.Time {
	wait := budget
	if deadline, ok := ctx.Deadline(); ok {
		lag := min(lags*time.Duration(l.ns.Load()), budget/2)
		wait = min(wait, deadline.Sub(now)-margin-lag)
	}
	return now.Add(wait) // keeps the monotonic clock, which the deadline may lack
}
