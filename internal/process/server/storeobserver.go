package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/process/storehealth"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// logEvery is how often the same thing is logged.
const logEvery = 10 * time.Second

// storeObserver counts and logs what a store behind a network does, and tells health of it.
type storeObserver struct {
	name     string // of the store, for people
	log      *slog.Logger
	registry *stats.Registry
	health   *storehealth.Store

	calls, ops, merged *count.Counter
	latency, size      *stats.Histogram
	errors             map[remote.Class]*count.Counter
	perNode            []stats.Metric // counters that every node has from the start, at 0
	nodes              sync.Map       // of *nodeState by name

	throttle *throttle.Log
	lines    storeLines
}

// storeLines is what the log says of a store.
type storeLines struct {
	failed string // of operations that failed
	events map[remote.EventKind]eventLine
}

// eventLine is what the log says of an event of a kind.
type eventLine struct {
	level slog.Level
	text  string
}

// nodeState is what is shown of a node's breaker.
type nodeState struct {
	state      atomic.Int32 // a health.Breaker
	opened     *count.Counter
	loggedOpen atomic.Bool // the last line about it says that it is open
}

// breaker returns the state.
func (n *nodeState) breaker() health.Breaker { return health.Breaker(n.state.Load()) }

// gauge returns the state as metrics have it: a node that is gone is shown as closed, since there is nothing to fix.
func (n *nodeState) gauge() float64 {
	if b := n.breaker(); b != health.Gone {
		return float64(b)
	}
	return float64(health.Closed)
}

// healthOf adds a store to health, which does not depend on it where DEFAULT_ON_FAILURE answers without it. Otherwise
// follows says whether health depends on connections even after the first one.
func healthOf(name string, s *settings.Settings, h *health.Tracker, follows bool) *storehealth.Store {
	optional := !strings.EqualFold(cmp.Or(s.Backend.OnFailure, "error"), "error")
	return storehealth.New(name, h, storehealth.Policy{Optional: optional, Follows: follows})
}

// newStoreObserver adds a store to the metrics. Those of its events are there, at 0, before anything happens.
func newStoreObserver(name string, log *slog.Logger, r *stats.Registry, state *storehealth.Store, lines storeLines) *storeObserver {
	o := &storeObserver{
		name:     name,
		lines:    lines,
		log:      log,
		registry: r,
		health:   state,
		throttle: throttle.Every(logEvery),
		calls:    r.Counter(stats.BackendCallsTotal),
		ops:      r.Counter(stats.BackendOpsTotal),
		merged:   r.Counter(stats.BackendMergedTakesTotal),
		latency:  r.Histogram(stats.BackendCallSeconds, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1),
		size:     r.Histogram(stats.BackendBatchSize, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
		errors:   make(map[remote.Class]*count.Counter),
	}
	r.Gauge(stats.BackendConnections, func() float64 { return float64(state.Connections()) })
	o.classes(remote.Timeout, remote.Refused, remote.Reset, remote.OOM, remote.Other)
	for kind := range lines.events {
		r.Counter(stats.BackendEventsTotal, string(kind))
	}
	return o
}

// classes makes the counters of the store's errors by class.
func (o *storeObserver) classes(all ...remote.Class) {
	for _, class := range all {
		o.errors[class] = o.registry.Counter(stats.BackendErrorsTotal, string(class))
	}
}

// observer returns what the store reports to.
func (o *storeObserver) observer() remote.Observer {
	return remote.Observer{Batch: o.batch, Breaker: o.breaker, Connections: o.health.Connected, Event: o.event}
}

// counted wraps b, and counts its errors by class.
func (o *storeObserver) counted(b backend.Backend) backend.Backend { return &countedBackend{b, o} }

type countedBackend struct {
	backend.Backend
	observer *storeObserver
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

func (o *storeObserver) failed(err error) {
	cmp.Or(o.errors[classOf(err)], o.errors[remote.Other]).Add(1)
}

// classOf returns the class of a store's error, or "" if it has none.
func classOf(err error) remote.Class {
	if e, ok := errors.AsType[*remote.Error](err); ok {
		return e.Class
	}
	return ""
}

// batch counts b, and logs it if it failed.
func (o *storeObserver) batch(b remote.Batch) {
	o.calls.Add(1)
	o.ops.Add(uint64(b.Ops))
	o.merged.Add(uint64(b.Merged))
	o.size.Observe(float64(b.Ops))
	o.latency.Observe(b.Duration.Seconds())
	o.node(b.Node)
	if b.Err == nil {
		return
	}
	class := string(b.Err.Class)
	if omitted, ok := o.throttle.Allow("failed " + b.Node + class); ok {
		o.log.Warn(o.lines.failed, "node", b.Node, "class", class, "error", b.Err, "omitted", omitted) //nolint:sloglint // each store's is constant
	}
}

// node returns what is known about a node. From then on its series are shown.
func (o *storeObserver) node(name string) *nodeState {
	if known, ok := o.nodes.Load(name); ok {
		return known.(*nodeState)
	}
	o.health.Node(name)
	for _, metric := range o.perNode {
		o.registry.Counter(metric, name)
	}
	known, there := o.nodes.LoadOrStore(name, &nodeState{opened: o.registry.Counter(stats.BackendBreakerOpenedTotal, name)})
	n := known.(*nodeState)
	if !there {
		o.registry.Gauge(stats.BackendBreakerState, n.gauge, name)
	}
	return n
}

// breaker follows the state of a node's breaker, which is that it is open while there is no connection.
// The log says when a breaker opens and when it closes, but does not mention probes.
func (o *storeObserver) breaker(name, state string) {
	n, now := o.node(name), health.ParseBreaker(state)
	n.state.Store(int32(now))
	o.health.Breaker(name, now)
	switch now {
	case health.Open:
		n.opened.Add(1)
		if omitted, ok := o.throttle.Allow("breaker " + name); ok {
			o.log.Warn("the backend is failing: on_failure decides, and the server keeps trying", "store", o.name, "node", name, "omitted", omitted)
			n.loggedOpen.Store(true)
		}
	case health.Closed:
		if n.loggedOpen.Swap(false) {
			o.log.Info("the backend answers again", "store", o.name, "node", name)
		}
	case health.Gone:
		n.loggedOpen.Store(false)
	case health.HalfOpen:
	}
}

// event counts e, which an operator should know about, and logs it.
func (o *storeObserver) event(e remote.Event) {
	if e.Kind == remote.EventConnectFailed {
		o.health.ConnectFailed(e.Err)
	}
	o.registry.Counter(stats.BackendEventsTotal, string(e.Kind)).Add(1)
	line, known := o.lines.events[e.Kind]
	omitted, ok := o.throttle.Allow(fmt.Sprint(e.Kind, e.Node, e.Detail))
	if !known || !ok {
		return
	}
	attrs := []any{"node", e.Node, "omitted", omitted}
	if e.Detail != "" {
		attrs = append(attrs, "detail", e.Detail)
	}
	if e.Err != nil {
		attrs = append(attrs, "error", e.Err)
	}
	o.log.Log(context.Background(), line.level, line.text, attrs...) //nolint:sloglint // each event's is constant
}
