package observe

import (
	"context"
	"log/slog"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
)

// Constants of LogShedding.
const (
	shedLook  = time.Second
	shedQuiet = 10 * time.Second // without shed requests, until the overload is over
)

// Shed is the number of shed requests, by reason.
type Shed struct {
	limiter.Shed

	Calls uint64 // before their message was read
}

// byPolicy returns the number of requests that on_failure decided.
func (n Shed) byPolicy() uint64 { return n.Process + n.Store }

// since returns log attributes with the increase from earlier, by reason.
func (n Shed) since(earlier Shed) []any {
	process, store, calls := n.Process-earlier.Process, n.Store-earlier.Store, n.Calls-earlier.Calls
	return []any{"requests", process + store + calls, "process", process, "store", store, "calls", calls}
}

// LogShedding logs when on_failure begins to decide requests for lack of time, when calls begin to be shed before they are read,
// and when an overload has ended. read returns the totals. Overloads end after ten quiet seconds, so there are at most three
// lines in ten seconds.
func LogShedding(log *slog.Logger, read func() Shed) task.Func {
	var (
		before, last  = read(), read()
		began, latest time.Time
	)
	return task.Every("shedding", shedLook, func(context.Context) {
		now := time.Now()
		switch n := read(); {
		case n != last:
			if began.IsZero() {
				began = now
			}
			logKinds(log, before, last, n)
			last, latest = n, now
		case !began.IsZero() && now.Sub(latest) >= shedQuiet:
			log.Info("the overload has ended", append(n.since(before), "seconds", int(latest.Sub(began)/time.Second)+1)...)
			before, began = n, time.Time{}
		}
	})
}

// logKinds logs the kinds of shedding that have begun since last. before is the total before the overload.
func logKinds(log *slog.Logger, before, last, n Shed) {
	if last.byPolicy() == before.byPolicy() && n.byPolicy() > last.byPolicy() {
		log.Warn("overload: on_failure decides requests that could not be answered in time", n.since(before)...)
	}
	if last.Calls == before.Calls && n.Calls > last.Calls {
		log.Warn("overload: calls are shed with an error before they are read, regardless of on_failure, because too many are in progress; "+
			"Envoy lets their requests pass, unless failure_mode_deny is true", n.since(before)...)
	}
}
