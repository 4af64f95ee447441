// Package memcached stores counters in memcached, like envoyproxy/ratelimit with BACKEND_TYPE=memcache: clock-aligned fixed windows that
// count rejected hits. It supports no other algorithm.
//
// A take first adds its hits (incr, or add if the counter does not exist) and then decides by the previous count. The server executes one
// command at a time, so replicas together admit exactly the limit. A check is a get, one for all counters of a call on a server. A refund
// is a decr, which stops at zero and creates nothing. The part of a lease (Extra) that is not admitted is subtracted again; until then
// another take may be rejected too early, but none is admitted beyond the limit. Takes of different callers are not merged.
//
// memcached has no command for its time, so the clock of this process determines the window, and the clocks of replicas should agree. If
// a clock is set back, its replica counts in an earlier window.
//
// The checksum of a key determines its server. While a server is down, its counters are unavailable; on another server, they would start
// from zero. Each server has a gomemcache client, which pools connections, a semaphore, because that pool has no maximum, and a breaker.
// A caller waits until 2 ms before its deadline. Commands already sent complete without the caller, and count. Commands that may have
// been counted are not sent again.
//
// This package is optional: the core works without it.
//
// Experimental: this package may change with every version.
package memcached

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Backend is a [backend.Backend] that stores counters in memcached.
type Backend struct {
	config  Config
	dialer  *remote.Dialer
	byName  map[string]*server
	servers []*server // in the configured order; a server may occur twice
	lag     remote.Lag

	counting sync.Mutex // guards active, and orders its reports
	active   int

	life task.Life
}

var _ backend.Backend = (*Backend)(nil)

// New returns a backend for c. Run opens its connections.
func New(c Config) (*Backend, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	c.defaults()
	b := &Backend{config: c, byName: make(map[string]*server)}
	b.dialer = &remote.Dialer{TLS: c.TLS, Timeout: c.DialTimeout, Permits: remote.NewPermits()}
	for _, name := range c.Servers {
		if b.byName[name] == nil {
			b.byName[name] = b.newServer(name)
		}
		b.servers = append(b.servers, b.byName[name])
	}
	return b, nil
}

// Run serves until ctx ends or b is closed, and then waits for exchanges in progress. Operations that arrive before Run wait for it until
// their deadlines.
func (b *Backend) Run(ctx context.Context) error {
	return b.life.Run(ctx, func(ctx context.Context) {
		var wg sync.WaitGroup
		for _, s := range b.byName {
			wg.Go(func() { s.run(ctx) })
		}
		wg.Wait()
	})
}

// String returns the name of the task.
func (b *Backend) String() string { return "memcached" }

// Close ends Run and waits until it returns.
func (b *Backend) Close() error {
	b.life.End()
	return nil
}

// Apply decides every op. It waits until 2 ms before the deadline of ctx, or earlier if this process is overloaded (see [remote.Lag]),
// but at most for [Config.OpTimeout]; without either, for 250 ms. It waits neither for a server that is down, nor for a connection if the
// reply would probably take more than half of that time. An op without a reply in time gets a [remote.Error]; it may have been counted
// unless the error is Unsent. With less than 1 ms left, nothing is sent.
func (b *Backend) Apply(ctx context.Context, ops []backend.Op) {
	if len(ops) == 0 {
		return
	}
	begun := time.Now()
	budget, enough := remote.Budget(ctx, begun, b.config.OpTimeout)
	if !enough {
		for i := range ops {
			ops[i].Decision, ops[i].Err = engine.Decision{}, errLate
		}
		return
	}
	ends := b.lag.Leave(ctx, begun, budget)
	ctx, cancel := context.WithDeadline(ctx, ends)
	defer cancel()
	c := &call{backend: b, ops: ops, budget: budget}
	c.plan()
	c.send(ctx)
	c.await(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		b.lag.Note(time.Since(ends))
	}
}

// Waits returns the expected wait of an operation that arrives now, by server.
func (b *Backend) Waits() map[string]time.Duration {
	all := make(map[string]time.Duration)
	for name, s := range b.byName {
		if all[name] = 0; len(s.slots) == 0 {
			all[name] = s.wait(1)
		}
	}
	return all
}

// connected adds delta to the number of open connections, and reports it.
func (b *Backend) connected(delta int) {
	b.counting.Lock()
	defer b.counting.Unlock()
	b.active += delta
	b.config.Observer.Connections(b.active)
}
