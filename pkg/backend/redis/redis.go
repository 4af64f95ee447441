// Package redis stores counters in Redis, shared by any number of replicas.
//
// Operations queue for the node of their key. Whenever one of the node's writers is free, it sends the whole queue, as one script call if
// the node is known to be a single Redis. A nearby node has two writers. So an idle server adds no delay, a busy one shares system calls,
// and there is no timer or window to tune. Queued takes of one key are merged into one take with a count, and are answered in order of
// arrival.
//
// A batch has its own deadline. Its callers wait until their own deadlines; the operations of a caller that gives up before the batch is
// formed are not sent. Operations that may have been counted are never sent again. Each node has a breaker that blocks calls while the
// node does not answer. Connections are opened in the background, so no call waits for a failing attempt.
//
// Ops of one call on the same key are applied in order, with one exception: if the server has lost the script (NOSCRIPT), accepts no
// calls with several keys, or is moving a key to another node, an op may be applied after the next one.
//
// go-redis authenticates, encodes commands, parses replies, queries sentinels, and follows the redirections of a cluster. It never
// retries a command. This package implements what go-redis does not support, each with a test that fails with go-redis alone
// (plain_test.go, and those of sentinels and clusters):
//
//   - Proxies that close the connection on HELLO ([withoutHello]).
//   - Sentinels that disagree: those with the newest failover count ([sentinels]).
//   - Cluster nodes that do not report their host ([slotsHook]).
//   - Connections that are opened before the old one closes, and by the caller ([link]). A go-redis pool closes first, dials for callers
//     that have left, and waits a second after some failures. It dials in a goroutine with its own context, so it cannot use a connection
//     opened by the writer; each link therefore has its own client with a pool of one.
//
// This package is part of the core.
//
// Experimental: this package may change with every version.
package redis

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Backend is a [backend.Backend] in Redis.
type Backend struct {
	main   *pool
	second *pool // for windows of one second; may be nil

	counting     sync.Mutex // held while connections are counted and reported, so that the last report is current
	wasConnected bool       // each deployment has had a connection; guarded by counting

	life task.Life
}

// pool is one deployment: a single server, a master watched by sentinels, or the masters of a cluster.
type pool struct {
	config   *Config
	target   target
	dialer   *remote.Dialer
	codec    codec
	observer *remote.Observer
	active   int             // open connections; guarded by Backend.counting
	count    func(delta int) // counts connections
	waiters  waiters
	expires  *pendingExpires // nil unless KeyFormat is ReferenceKeys
	opened   atomic.Uint64   // connections opened
	closed   atomic.Uint64
	calls    atomic.Int64 // calls of Apply in progress
	lag      remote.Lag

	one       *node      // the server or master; nil for a cluster
	sentinels *sentinels // nil for other deployments
	cluster   *cluster   // nil for other deployments
}

// New returns a backend for c. Run opens its connections.
func New(c Config) (*Backend, error) {
	b := new(Backend)
	permits := remote.NewPermits()
	var err error
	if b.main, err = b.newPool(c, permits); err != nil {
		return nil, err
	}
	if second := c.PerSecond; second != nil {
		s := *second
		s.KeyPrefix, s.ExpirationJitter, s.KeyFormat, s.Now = c.KeyPrefix, c.ExpirationJitter, c.KeyFormat, c.Now
		s.Observer, s.Evicted = c.Observer, c.Evicted
		if b.second, err = b.newPool(s, permits); err != nil {
			return nil, fmt.Errorf("per second: %w", err)
		}
	}
	return b, nil
}

func (b *Backend) newPool(c Config, permits chan struct{}) (*pool, error) {
	c.defaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	t, err := c.parse()
	if err != nil {
		return nil, err
	}
	p := &pool{config: &c, target: t, dialer: newDialer(&c, t, permits), observer: &c.Observer}
	p.count = func(delta int) { b.count(p, delta) }
	if c.KeyFormat == ReferenceKeys {
		p.codec, p.expires = newReferenceCodec(&c), new(pendingExpires)
	} else {
		if p.codec, err = newScriptCodec(&c); err != nil {
			return nil, err
		}
	}
	switch c.Type {
	case Cluster:
		p.cluster = newCluster(p)
	case Sentinel:
		p.sentinels = newSentinels(p)
		p.one = p.newNode(t.master, p.sentinels.masters)
	case Single:
		addr := t.addrs[0]
		p.one = p.newNode(addr, at(addr))
	}
	return p, nil
}

// Run opens connections and sends queued operations until ctx ends or b is closed. Operations queued before Run wait for it until their
// deadlines.
func (b *Backend) Run(ctx context.Context) error {
	return b.life.Run(ctx, func(ctx context.Context) {
		var wg sync.WaitGroup
		for _, p := range b.pools() {
			wg.Go(func() { p.run(ctx) })
		}
		wg.Wait()
	})
}

// String returns the name of the task.
func (b *Backend) String() string { return "redis" }

func (b *Backend) pools() []*pool {
	if b.second == nil {
		return []*pool{b.main}
	}
	return []*pool{b.main, b.second}
}

// Close ends Run, waits until it returns, and closes all connections.
func (b *Backend) Close() error {
	b.life.End()
	var err error
	for _, p := range b.pools() {
		if p.one != nil {
			p.one.stop(errStopped)
		}
		if p.cluster != nil {
			err = errors.Join(err, p.cluster.close())
		}
	}
	return err
}

// Connections returns the number of open connections; 0 until each deployment has had one.
func (b *Backend) Connections() int {
	b.counting.Lock()
	defer b.counting.Unlock()
	return b.connections()
}

// connections implements Connections. b.counting must be held.
func (b *Backend) connections() int {
	switch {
	case !b.wasConnected:
		return 0
	case b.second == nil:
		return b.main.active
	default:
		return b.main.active + b.second.active
	}
}

// count adds delta to the number of connections of p, and reports the total.
func (b *Backend) count(p *pool, delta int) {
	b.counting.Lock()
	defer b.counting.Unlock()
	p.active += delta
	b.wasConnected = b.wasConnected || b.main.active > 0 && (b.second == nil || b.second.active > 0)
	p.observer.Connections(b.connections())
}

// Pool contains the numbers of connections to one deployment that were opened and closed.
type Pool struct{ Opened, Closed uint64 }

// Pools returns the counts of the main deployment, followed by those of the one for limits per second, if any.
func (b *Backend) Pools() []Pool {
	var all []Pool
	for _, p := range []*pool{b.main, b.second} {
		if p != nil {
			closed := p.closed.Load() // first, so that it never exceeds Opened
			all = append(all, Pool{Opened: p.opened.Load(), Closed: closed})
		}
	}
	return all
}

// Waits returns the expected wait of an operation that arrives now, by node.
func (b *Backend) Waits() map[string]time.Duration {
	all := make(map[string]time.Duration)
	for _, p := range b.pools() {
		for n := range p.nodes() {
			all[n.addr] = max(all[n.addr], n.waits())
		}
	}
	return all
}

// Way returns the approximate base time of a round trip to the most distant node.
func (b *Backend) Way() (way time.Duration) {
	for _, p := range b.pools() {
		for n := range p.nodes() {
			way = max(way, n.pace.Estimate().Way())
		}
	}
	return way
}

// nodes returns the nodes of p.
func (p *pool) nodes() iter.Seq[*node] {
	if p.one != nil {
		return slices.Values([]*node{p.one})
	}
	return maps.Values(*p.cluster.nodes.Load())
}

// idleLook is the interval at which idle writers check their connections.
const idleLook = 250 * time.Millisecond

// run runs the writers of p until ctx ends.
func (p *pool) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	if p.one != nil {
		p.one.start(ctx, &wg)
		if p.sentinels != nil {
			wg.Go(func() { p.sentinels.watch(ctx, p.one) })
		}
	} else {
		wg.Go(func() { p.cluster.watch(ctx) })
	}
	ticker := time.NewTicker(idleLook)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if p.one != nil {
			p.one.tick()
		} else {
			p.cluster.tick()
		}
	}
}

func (p *pool) connected(delta int) {
	if delta > 0 {
		p.opened.Add(uint64(delta))
	} else {
		p.closed.Add(uint64(-delta))
	}
	p.count(delta)
}

// opTimeout returns the maximum duration of a round trip.
func (p *pool) opTimeout() time.Duration { return remote.RoundTrip(p.config.OpTimeout) }

// Apply decides every op, in one round trip to each node with one of their keys. It waits until 2 ms before the deadline of ctx, or
// earlier if this process is overloaded (see [remote.Lag]), but at most for [Config.OpTimeout]; without either, for 250 ms. It does not
// wait for a silent node. If ctx is cancelled, it returns within 50 ms. An op without an answer gets a [remote.Error]; it may have been
// counted unless the error is Unsent or its class is that of an error reply. With less than 1 ms left, nothing is sent. Ops wait for Run
// if it has not begun, and fail immediately if it has ended.
func (b *Backend) Apply(ctx context.Context, ops []backend.Op) {
	if b.second == nil {
		b.main.apply(ctx, ops, nil)
		return
	}
	seconds := 0
	for i := range ops {
		if perSecond(&ops[i]) {
			seconds++
		}
	}
	switch seconds {
	case 0:
		b.main.apply(ctx, ops, nil)
	case len(ops):
		b.second.apply(ctx, ops, nil)
	default:
		var wg sync.WaitGroup
		wg.Go(func() { b.second.apply(ctx, ops, perSecond) })
		b.main.apply(ctx, ops, func(op *backend.Op) bool { return !perSecond(op) })
		wg.Wait()
	}
}

// perSecond reports whether op belongs to the second Redis.
func perSecond(op *backend.Op) bool {
	for i := range op.Limits {
		if op.Limits[i].Window != 1e6 {
			return false
		}
	}
	return len(op.Limits) > 0
}

// apply decides the ops for which mine returns true, or all if mine is nil.
func (p *pool) apply(ctx context.Context, ops []backend.Op, mine func(*backend.Op) bool) {
	if len(ops) == 0 {
		return
	}
	now := time.Now()
	w := p.waiters.get(len(ops))
	budget, enough := remote.Budget(ctx, now, p.config.OpTimeout)
	w.budget = budget
	w.leaves = p.lag.Leave(ctx, now, budget)
	var unsent *remote.Error
	if !enough {
		unsent = errLate
	}
	defer p.calls.Add(-1)
	if p.calls.Add(1) > maxCalls {
		unsent = errFull
	}
	for i := range ops {
		op := &ops[i]
		if mine != nil && !mine(op) {
			continue
		}
		op.Decision, op.Err = engine.Decision{}, nil
		if unsent != nil {
			op.Err = unsent
			continue
		}
		n, e := p.enter(ctx, w, op, now, len(ops))
		if e != nil {
			op.Err = e
			continue
		}
		w.add(i, op, n)
	}
	if len(w.items) == 0 {
		p.waiters.pool.Put(w)
		return
	}
	w.queue()
	w.await(ctx, now)
	for i := range w.items {
		it, op := &w.items[i], &ops[w.at[i]]
		if it.done.Load() {
			op.Decision, op.Err = it.op.Decision, it.op.Err
		} else {
			e := store.Unanswered(it.node.addr)
			e.Unsent = it.dropped
			op.Err = e
		}
	}
	w.release(1)
}

// Errors of ops that are not sent.
var (
	errLate    = store.Late()
	errStopped = store.Stopped()
	errShed    = store.Shed()
	errFull    = store.Unsent(remote.Timeout, "", "too many calls are already waiting")
)

// enter returns the node for op, or the reason why op must not be queued. The caller of a probe waits for only half of its time.
func (p *pool) enter(ctx context.Context, w *waiter, op *backend.Op, now time.Time, ops int) (*node, *remote.Error) {
	n, e := p.route(ctx, op)
	if e != nil {
		return nil, e
	}
	if p.calls.Load() > manyCalls && n.breaker.Age() > quietFor {
		return nil, errFull
	}
	if len(w.items) == 0 || w.items[len(w.items)-1].node != n {
		if n.tooLate(op.Flow, ops, w.budget) {
			return nil, errShed
		}
	}
	probing, e := n.admit(now, w.budget)
	if probing {
		w.leaves = now.Add(w.budget / 2)
	}
	return n, e
}

// route returns the node of op's counters.
func (p *pool) route(ctx context.Context, op *backend.Op) (*node, *remote.Error) {
	if p.one != nil {
		return p.one, nil
	}
	return p.cluster.route(ctx, p.codec.route(op))
}
