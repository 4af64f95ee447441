// Package memcached keeps counters in memcached: fixed windows that are aligned to the clock and count rejected hits,
// like those of envoyproxy/ratelimit with BACKEND_TYPE=memcache, and no other algorithm.
//
// A take adds its hits first (incr, or add if there is no counter yet) and is decided on what was there before. The
// server serializes commands, so any number of replicas together admit exactly the limit. A check is a get, a single one
// for all counters of a call on one server. Refunding is a decr, which stops at zero and creates nothing. The part of
// a lease (Extra) that is not admitted is taken away again; a take in between may be rejected although there is room,
// but none is admitted beyond the limit. Takes of different callers are not merged.
//
// memcached cannot be asked for the time: windows are determined by this process' clock, so the clocks of replicas
// should agree. If one is set back, hits are counted in a window that was already over, as long as its counter is
// there.
//
// Counters are spread over the servers by the checksum of their keys. While a server is down its counters are
// unavailable: they are not moved to another one, where they would start again. Each server has a client, a semaphore that
// bounds its connections, and a breaker, so that a call does not wait for a server that does not answer. A call waits
// until 2 ms before its caller's deadline; what has been sent goes on without it, and is counted. Nothing that may have
// been counted is sent a second time. Where all connections to a server are in use, a call that would probably not be
// answered in time does not wait for one.
//
// This package is optional: the core works without it.
//
// Experimental: this package may change with every version.
package memcached

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// maxCalls is how many calls may be under way; further ones fail immediately.
const maxCalls = 1024

// Backend is a [backend.Backend] in memcached.
type Backend struct {
	config  Config
	dialer  *remote.Dialer
	fleet   atomic.Pointer[fleet]
	unknown atomic.Pointer[remote.Error] // why there is no fleet yet
	calls   atomic.Int64                 // calls of Apply under way
	lag     remote.Lag

	counting sync.Mutex // guards active, and keeps reports of it in order
	active   int

	life task.Life
}

var _ backend.Backend = (*Backend)(nil)

// New returns a backend for c. It opens no connection: Run does.
func New(c Config) (*Backend, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	c.defaults()
	b := &Backend{config: c}
	b.dialer = &remote.Dialer{TLS: c.TLS, Timeout: c.DialTimeout, Permits: remote.NewPermits(), Resolver: c.Resolver}
	if c.SRV == "" {
		b.fleet.Store(b.newFleet(c.Servers, nil))
	} else {
		b.unknown.Store(errUnknown)
	}
	return b, nil
}

// Run opens connections, and asks DNS for the servers if need be, until ctx ends or b is closed. Operations that come
// before Run wait for it for as long as their callers do. Run waits for exchanges under way before it returns.
func (b *Backend) Run(ctx context.Context) error {
	return b.life.Run(ctx, func(ctx context.Context) {
		var wg sync.WaitGroup
		if f := b.fleet.Load(); f != nil {
			f.start(ctx, &wg)
		} else {
			b.watch(ctx, &wg)
		}
		<-ctx.Done()
		wg.Wait()
	})
}

// String names the task.
func (b *Backend) String() string { return "memcached" }

// Close ends Run and waits until it has returned.
func (b *Backend) Close() error {
	b.life.End()
	return nil
}

// Apply decides every op. It waits until 2 ms before ctx's deadline, or earlier if answers have been late (see [remote.Lag]),
// but no longer than [Config.OpTimeout]; without either, for 250 ms; and not at all for a server that is silent, nor where all
// connections to a server are in use and the answer would probably take more than half of that time. An op without an answer
// by then gets a [remote.Error], and may have been counted unless the error says Unsent. With less than 1 ms to wait nothing
// is sent.
func (b *Backend) Apply(ctx context.Context, ops []backend.Op) {
	if len(ops) == 0 {
		return
	}
	begun := time.Now()
	budget, enough := remote.Budget(ctx, begun, b.config.OpTimeout)
	defer b.calls.Add(-1)
	full := b.calls.Add(1) > maxCalls
	f := b.fleet.Load()
	switch {
	case !enough:
		fail(ops, errLate)
	case full:
		fail(ops, errFull)
	case f == nil:
		fail(ops, b.unknown.Load())
	default:
		c := &call{backend: b, ops: ops, ends: b.lag.Leave(ctx, begun, budget), budget: budget}
		c.plan(f)
		c.send(ctx)
		c.await(ctx)
	}
}

// Waits returns how long an operation that comes now would probably wait, by server.
func (b *Backend) Waits() map[string]time.Duration {
	all := make(map[string]time.Duration)
	if f := b.fleet.Load(); f != nil {
		for _, s := range f.servers {
			all[s.name] = s.waits()
		}
	}
	return all
}

// fail fails all ops.
func fail(ops []backend.Op, e *remote.Error) {
	for i := range ops {
		ops[i].Decision, ops[i].Err = engine.Decision{}, e
	}
}

// connected adds delta to the number of connections, and reports it.
func (b *Backend) connected(delta int) {
	b.counting.Lock()
	defer b.counting.Unlock()
	b.active += delta
	b.config.Observer.Connections(b.active)
}
