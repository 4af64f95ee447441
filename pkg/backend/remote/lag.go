package remote

import (
	"context"
	"sync/atomic"
	"time"
)

// Lag knows how late this process comes to do what it has set a timer for, because others have its processors. An answer
// to a caller is late by as much before it is begun, and again before it is sent. Its zero value expects no lag. Its
// methods are safe for concurrent use.
type Lag struct{ ns atomic.Int64 }

// What a Lag makes of what it sees: the greatest recent lag.
const (
	mostLag = 5 * time.Millisecond // a process that stood still for longer must not end all calls early
	recent  = 256                  // after about so many timers less lag is believed
	lags    = 2                    // between when a caller stops waiting, and when its answer has been sent
)

// Note notes how late a timer was.
func (l *Lag) Note(late time.Duration) {
	n, old := int64(min(late, mostLag)), l.ns.Load()
	if n < old {
		n = old - (old-n)/recent
	}
	l.ns.Store(n)
}

// Leave returns when a caller stops waiting that has the given budget (see [Budget]) from now on: early enough that its
// answer makes its deadline. It never gives up more than half of its budget for that.
func (l *Lag) Leave(ctx context.Context, now time.Time, budget time.Duration) time.Time {
	wait := budget
	if deadline, ok := ctx.Deadline(); ok {
		lag := min(lags*time.Duration(l.ns.Load()), budget/2)
		wait = min(wait, deadline.Sub(now)-margin-lag)
	}
	return now.Add(wait) // by the monotonic clock, which the deadline may be without
}
