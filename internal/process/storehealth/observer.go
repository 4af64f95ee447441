package storehealth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// logEvery is the minimum interval between log lines about the same event.
const logEvery = 10 * time.Second

// Config describes a backend to an [Observer].
type Config struct {
	Name    string                    // for people
	Policy  Policy                    // effect of the backend on health and readiness
	Failed  string                    // log line of failed operations
	Events  map[remote.EventKind]Line // log lines of events; others are only counted
	Classes []remote.Class            // error classes beyond the common ones
}

// Line is a log line.
type Line struct {
	Level slog.Level
	Text  string
}

// Observer counts and logs the events of a backend. It is safe for concurrent use.
type Observer struct {
	*Store

	config   Config
	log      *slog.Logger
	registry *stats.Registry
	throttle *throttle.Log

	calls, ops, merged *count.Counter
	latency, size      *stats.Histogram
	errors             map[remote.Class]*count.Counter
	failing            sync.Map // nodes whose last log line is about failing
}

// Observe adds a backend to health and metrics. Series of its errors and events start at 0.
func Observe(c Config, log *slog.Logger, r *stats.Registry, h *health.Tracker) *Observer {
	o := &Observer{
		Store:    New(c.Name, h, c.Policy),
		config:   c,
		log:      log,
		registry: r,
		throttle: throttle.Every(logEvery),
		calls:    r.Counter(stats.BackendCallsTotal),
		ops:      r.Counter(stats.BackendOpsTotal),
		merged:   r.Counter(stats.BackendMergedTakesTotal),
		latency:  r.Histogram(stats.BackendCallSeconds, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1),
		size:     r.Histogram(stats.BackendBatchSize, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
		errors:   make(map[remote.Class]*count.Counter),
	}
	r.Gauge(stats.BackendConnections, func() float64 { return float64(o.Connections()) })
	for _, class := range append([]remote.Class{remote.Timeout, remote.Refused, remote.Reset, remote.OOM, remote.Other}, c.Classes...) {
		o.errors[class] = r.Counter(stats.BackendErrorsTotal, string(class))
	}
	for kind := range c.Events {
		r.Counter(stats.BackendEventsTotal, string(kind))
	}
	return o
}

// Remote returns the callbacks for the backend.
func (o *Observer) Remote() remote.Observer {
	return remote.Observer{Batch: o.batch, Breaker: o.breaker, Connections: o.Connected, Event: o.event}
}

// Counted returns b with errors counted by class.
func (o *Observer) Counted(b backend.Backend) backend.Backend { return &countedBackend{b, o} }

type countedBackend struct {
	backend.Backend
	observer *Observer
}

// Apply implements [backend.Backend].
func (c *countedBackend) Apply(ctx context.Context, ops []backend.Op) {
	c.Backend.Apply(ctx, ops)
	for i := range ops {
		if err := ops[i].Err; err != nil {
			c.observer.failed(err)
		}
	}
}

func (o *Observer) failed(err error) {
	class := remote.Other
	if e, ok := errors.AsType[*remote.Error](err); ok {
		class = e.Class
	}
	cmp.Or(o.errors[class], o.errors[remote.Other]).Add(1)
}

// batch counts b and logs its error.
func (o *Observer) batch(b remote.Batch) {
	o.calls.Add(1)
	o.ops.Add(uint64(b.Ops))
	o.merged.Add(uint64(b.Merged))
	o.size.Observe(float64(b.Ops))
	o.latency.Observe(b.Duration.Seconds())
	if b.Err == nil {
		return
	}
	class := string(b.Err.Class)
	o.throttle.Through(o.log, "failed "+b.Node+class).
		Warn(o.config.Failed, "node", b.Node, "class", class, "error", b.Err) //nolint:sloglint // constant for each backend
}

// breaker records the state of a node's breaker. It logs when a breaker opens and closes, but not its probes. The node's series
// start with the first state.
func (o *Observer) breaker(node, state string) {
	o.Breaker(node, state)
	opened := o.registry.Counter(stats.BackendBreakerOpenedTotal, node)
	o.registry.Gauge(stats.BackendBreakerState, func() float64 { return o.number(node) }, node)
	switch state {
	case remote.Open:
		opened.Add(1)
		if omitted, ok := o.throttle.Allow("breaker " + node); ok {
			o.log.Warn("the backend is failing: on_failure decides, and the server keeps trying",
				"store", o.config.Name, "node", node, "omitted", omitted)
			o.failing.Store(node, true)
		}
	case remote.Closed:
		if _, logged := o.failing.LoadAndDelete(node); logged {
			o.log.Info("the backend answers again", "store", o.config.Name, "node", node)
		}
	case remote.Gone:
		o.failing.Delete(node)
	}
}

// number returns the state of a breaker as a metric value. A removed node is closed, because there is nothing to fix.
func (o *Observer) number(node string) float64 {
	return float64(max(0, slices.Index([]string{remote.Closed, remote.HalfOpen, remote.Open}, o.Breakers()[node])))
}

// event counts and logs e.
func (o *Observer) event(e remote.Event) {
	if e.Kind == remote.EventConnectFailed {
		o.ConnectFailed(e.Err)
	}
	o.registry.Counter(stats.BackendEventsTotal, string(e.Kind)).Add(1)
	line, known := o.config.Events[e.Kind]
	if !known {
		return
	}
	log := o.throttle.Through(o.log, fmt.Sprint(e.Kind, e.Node, e.Detail)).With("node", e.Node)
	if e.Detail != "" {
		log = log.With("detail", e.Detail)
	}
	if e.Err != nil {
		log = log.With("error", e.Err)
	}
	log.Log(context.Background(), line.Level, line.Text) //nolint:sloglint // constant for each event
}
