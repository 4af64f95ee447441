package server

import (
	"context"
	"log/slog"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/admission"
	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// newGate returns the gate through which all calls come, and shows what it does.
func newGate(r *stats.Registry) *admission.Gate {
	g := admission.New(remote.DefaultOpTimeout)
	r.Source(func(v *stats.Values) {
		now := g.Stats()
		v.Gauge(stats.Calls, float64(now.Calls))
		v.Gauge(stats.CallsLimit, float64(now.Limit))
		v.Gauge(stats.CallsWait, now.Wait.Seconds())
	})
	return g
}

// When shedding is looked for, and when it is over.
const (
	shedLook  = time.Second
	shedQuiet = 10 * time.Second // without a request that is shed
)

// shed is how many requests have been shed, by reason.
type shed struct{ process, store, calls uint64 }

// shed returns how many requests have been shed so far.
func (v *Server) shed() shed {
	n := v.limiter.Shed()
	return shed{process: n.Process, store: n.Store, calls: v.unread.Load()}
}

// byPolicy returns how many requests on_failure has decided.
func (n shed) byPolicy() uint64 { return n.process + n.store }

// since returns how many more n are than earlier, by reason, for the log.
func (n shed) since(earlier shed) []any {
	process, store, calls := n.process-earlier.process, n.store-earlier.store, n.calls-earlier.calls
	return []any{"requests", process + store + calls, "process", process, "store", store, "calls", calls}
}

// logShedding logs when policies begin to decide what there is no time for, when calls begin to be shed before they are read, and when
// that has ended, given what returns how many requests have been shed so far. Since it has ended only after a while, that
// is at most three lines in ten seconds.
func logShedding(log *slog.Logger, read func() shed) task.Func {
	var (
		before, last  = read(), read()
		began, latest time.Time
	)
	return every("shedding", shedLook, func(context.Context) {
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

// logKinds logs which kinds of shedding have begun since last, in an overload before which there was before.
func logKinds(log *slog.Logger, before, last, n shed) {
	if last.byPolicy() == before.byPolicy() && n.byPolicy() > last.byPolicy() {
		log.Warn("overload: on_failure decides requests that could not be answered in time", n.since(before)...)
	}
	if last.calls == before.calls && n.calls > last.calls {
		log.Warn("overload: calls are shed with an error before they are read, regardless of on_failure, because too many are in progress; "+
			"Envoy lets their requests pass, unless failure_mode_deny is true", n.since(before)...)
	}
}
