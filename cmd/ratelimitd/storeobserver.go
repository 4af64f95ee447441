package main

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

	"github.com/ratelimitd/ratelimitd/internal/settings"
	"github.com/ratelimitd/ratelimitd/internal/stats"
	"github.com/ratelimitd/ratelimitd/internal/task"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memcached"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// sayAgain is how long the log does not repeat what it has said.
const sayAgain = 10 * time.Second

// The states of a breaker, as shown by the gauge.
const (
	breakerClosed int32 = iota
	breakerHalfOpen
	breakerOpen
)

// storeObserver counts and logs what a store behind a network does, and reports it to health.
type storeObserver struct {
	name      string // of the store, for people
	log       *slog.Logger
	registry  *stats.Registry
	component *task.Component
	follows   bool // health depends on connections even after the first one
	answers   bool // health does not depend on the store, because the server can answer without it

	calls, ops, merged    *stats.Counter
	latency, size         *stats.Histogram
	errors                map[string]*stats.Counter // by class
	connections, breakers atomic.Int64              // connections that are up; breakers that are not closed
	nodes                 sync.Map                  // of *nodeState by name
	tried                 chan struct{}             // closed once there has been a connection, or connecting has failed
	once                  sync.Once                 // for tried

	mu        sync.Mutex
	connected bool // there has been a connection
	failure   string
	said      map[string]said
}

// nodeState is what is known of a node's breaker.
type nodeState struct {
	state atomic.Int32
	gone  atomic.Bool // it is no longer asked
	told  bool        // the log has said that it is open; guarded by storeObserver.mu
}

// said is when something was last logged, and how often it has been omitted since.
type said struct {
	at      time.Time
	omitted int
}

const noConnectionYet = "there was no connection yet"

// newStoreObserver adds a store to the metrics and to health. The store is unhealthy until its first connection, unless
// DEFAULT_ON_FAILURE answers without it.
func newStoreObserver(name string, s *settings.Settings, log *slog.Logger, r *stats.Registry, h *task.Health) *storeObserver {
	answers := !strings.EqualFold(cmp.Or(s.Backend.OnFailure, "error"), "error")
	o := &storeObserver{
		name:      name,
		log:       log,
		registry:  r,
		component: h.Add(name, answers, noConnectionYet),
		answers:   answers,
		failure:   noConnectionYet,
		said:      make(map[string]said),
		tried:     make(chan struct{}),
		calls:     r.Counter("ratelimitd.backend_calls_total"),
		ops:       r.Counter("ratelimitd.backend_ops_total"),
		merged:    r.Counter("ratelimitd.backend_merged_takes_total"),
		latency:   r.Histogram("ratelimitd.backend_call_seconds", .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1),
		size:      r.Histogram("ratelimitd.backend_batch_size", 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
		errors:    make(map[string]*stats.Counter),
	}
	r.Gauge("ratelimitd.backend_connections", func() float64 { return float64(o.connections.Load()) })
	return o
}

// classes returns the classes of the store's errors.
func (o *storeObserver) classes(all ...remote.Class) {
	for _, class := range all {
		o.errors[string(class)] = o.registry.Counter("ratelimitd.backend_errors_total", "class", string(class))
	}
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
	n, ok := o.errors[classOf(err)]
	if !ok {
		n = o.errors[string(remote.Other)]
	}
	n.Add(1)
}

// classOf returns the class of a store's error, or "" if it has none.
func classOf(err error) string {
	if e, ok := errors.AsType[*redis.Error](err); ok {
		return string(e.Class)
	}
	if e, ok := errors.AsType[*memcached.Error](err); ok {
		return string(e.Class)
	}
	return ""
}

// batch is one round trip to a node.
type batch struct {
	node        string
	ops, merged int // operations, and how many of them were merged into others
	took        time.Duration
	err         error // the worst error; nil if there was none
}

// batch counts b, and reports whether to log it, because it failed, and with which attributes.
func (o *storeObserver) batch(b batch) (attrs []any, due bool) {
	o.calls.Add(1)
	o.ops.Add(uint64(b.ops))
	o.merged.Add(uint64(b.merged))
	o.size.Observe(float64(b.ops))
	o.latency.Observe(b.took.Seconds())
	o.node(b.node)
	if b.err == nil {
		return nil, false
	}
	class := classOf(b.err)
	omitted, due := o.due("failed " + b.node + class)
	return []any{"node", b.node, "class", class, "error", b.err, "omitted", omitted}, due
}

// node returns what is known about a node. From then on the node's breaker is shown.
func (o *storeObserver) node(name string) *nodeState {
	if known, ok := o.nodes.Load(name); ok {
		return known.(*nodeState)
	}
	known, there := o.nodes.LoadOrStore(name, new(nodeState))
	n := known.(*nodeState)
	if !there {
		o.registry.Gauge("ratelimitd.backend_breaker_state", func() float64 { return float64(n.state.Load()) }, "node", name)
	}
	return n
}

// breaker follows the state of a node's breaker. A node that is gone is shown as closed, since there is nothing to fix.
// The log says when a breaker opens and when it closes, but does not mention probes.
func (o *storeObserver) breaker(name, state string) {
	n := o.node(name)
	now := map[string]int32{
		remote.Closed: breakerClosed, remote.HalfOpen: breakerHalfOpen, remote.Open: breakerOpen, remote.Gone: breakerClosed,
	}[state]
	n.gone.Store(state == remote.Gone)
	before := n.state.Swap(now)
	switch {
	case before == breakerClosed && now != breakerClosed:
		o.breakers.Add(1)
	case before != breakerClosed && now == breakerClosed:
		o.breakers.Add(-1)
	}
	if now == breakerOpen {
		o.registry.Counter("ratelimitd.backend_breaker_opened_total", "node", name).Add(1)
		if omitted, due := o.due("breaker " + name); due {
			o.log.Warn("the store does not answer as it should: on_failure decides, and a call now and then tries again", "store", o.name, "node", name, "omitted", omitted)
			o.tell(n, true)
		}
	}
	if now == breakerClosed && o.tell(n, false) && state != remote.Gone {
		o.log.Warn("the store answers again", "store", o.name, "node", name)
	}
}

// tell notes whether the log has said that the breaker of n is open, and returns whether it had before.
func (o *storeObserver) tell(n *nodeState, open bool) (before bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before, n.told = n.told, open
	return before
}

// connection follows the number of connections that are up.
func (o *storeObserver) connection(active int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.connections.Store(int64(active))
	switch {
	case active > 0:
		if o.follows || !o.connected {
			o.component.Set(true, "")
		}
		o.connected = true
		o.once.Do(func() { close(o.tried) })
	case o.connected:
		o.failure = "there is no connection"
		o.component.Set(!o.follows, o.failure)
	}
}

// event is something an operator should know about.
type event struct {
	kind, node, detail string
	err                error // nil if nothing failed
}

// event counts e, and reports whether to log it, and with which attributes.
func (o *storeObserver) event(e event) (attrs []any, due bool) {
	o.registry.Counter("ratelimitd.backend_events_total", "event", e.kind).Add(1)
	omitted, due := o.due(fmt.Sprint(e.kind, e.node, e.detail))
	if !due {
		return nil, false
	}
	attrs = []any{"node", e.node, "omitted", omitted}
	if e.detail != "" {
		attrs = append(attrs, "detail", e.detail)
	}
	if e.err != nil {
		attrs = append(attrs, "error", e.err)
	}
	return attrs, true
}

// connectFailed notes why there is no connection, for health.
func (o *storeObserver) connectFailed(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.once.Do(func() { close(o.tried) })
	if o.connections.Load() > 0 || err == nil {
		return
	}
	o.failure = "there is no connection: " + err.Error()
	o.component.Set(o.answers || o.connected && !o.follows, o.failure)
}

// mostSaid bounds what due remembers; there are few names of nodes.
const mostSaid = 1000

// due reports whether something should be logged, because it has not been lately, and how often it has been omitted
// since.
func (o *storeObserver) due(what string) (omitted int, due bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before, known := o.said[what]
	now := time.Now()
	if known && now.Sub(before.at) < sayAgain {
		before.omitted++
		o.said[what] = before
		return 0, false
	}
	if len(o.said) >= mostSaid {
		clear(o.said)
	}
	o.said[what] = said{at: now}
	return before.omitted, true
}

// notReady returns why requests that need the store cannot be decided now, or "" if they can, or DEFAULT_ON_FAILURE
// answers without it.
func (o *storeObserver) notReady() string {
	if o.answers {
		return ""
	}
	if o.connections.Load() == 0 {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.failure
	}
	var nodes int64
	o.nodes.Range(func(_, n any) bool {
		if !n.(*nodeState).gone.Load() {
			nodes++
		}
		return true
	})
	if nodes > 0 && o.breakers.Load() >= nodes {
		return "it does not answer in time or at all"
	}
	return ""
}
