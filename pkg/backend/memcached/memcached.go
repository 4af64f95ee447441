// Package memcached keeps counters in memcached: fixed windows that begin with the clock and count refused hits, as
// envoyproxy/ratelimit's with BACKEND_TYPE=memcache, and no other algorithm.
//
// A take adds its hits first (incr, or add where there is no counter yet) and is decided on what was there before. The
// store does one thing after the other, so that any number of replicas together admit exactly the limit. A look is a get,
// of all counters of a call that live on one server at once. Giving back is a decr, which ends at zero and creates
// nothing. Of a lease (Extra) what is not admitted is taken away again; who asks between the two may be refused too
// early, never admitted too late. Takes of different callers are not merged.
//
// memcached has no clock to ask: windows are those of this process' clock, so that the clocks of replicas should agree.
// Where one is set back, hits are counted in a window that was over, for as long as its counter is there.
//
// Counters are spread over the servers by the checksum of their keys, and stay away as long as their server does: they
// are not moved to another one, which would begin them anew. Each server has connections of its own, opened in the
// background, and a breaker, so that a call never waits for one that does not answer. A call waits until its caller's
// deadline, less 2 ms; what was sent goes on without it, and is counted. Nothing that may have been counted is sent a
// second time.
package memcached

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Bounds of what a call does at once, and of what waits.
const (
	maxCalls = 1024 // under way; what comes then is refused at once
	maxLanes = 4    // connections to one server that one call uses
)

// What a caller keeps of its time.
const (
	margin   = 2 * time.Millisecond // for the way back
	least    = time.Millisecond     // below which nothing is sent
	shortest = 5 * time.Millisecond // below which a caller says nothing about a server by leaving
)

// Backend is a [backend.Backend] in memcached.
type Backend struct {
	config  Config
	dialer  *remote.Dialer
	fleet   atomic.Pointer[fleet]
	unknown atomic.Pointer[Error] // why there is no fleet yet
	calls   atomic.Int64          // of Apply that are under way

	counting sync.Mutex // of connections, so that their number is told in order
	active   int

	life backend.Life
}

var _ backend.Backend = (*Backend)(nil)

// New makes a backend of c. It opens no connection: Run does.
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

// Run opens connections, and asks DNS for the servers where it has to, until ctx ends or b is closed. Operations that come
// before wait for it, for as long as their callers do. It waits for exchanges that are under way.
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

// Close ends Run and waits for its end.
func (b *Backend) Close() error {
	b.life.End()
	return nil
}

// Apply decides every op. It waits until ctx's deadline less 2 ms, and no longer than [Config.OpTimeout]; an op that has
// no answer by then gets an [*Error], and may have been counted unless the error says Unsent. With less than 1 ms to wait
// nothing is sent.
func (b *Backend) Apply(ctx context.Context, ops []backend.Op) {
	if len(ops) == 0 {
		return
	}
	begun := time.Now()
	budget := b.budget(ctx, begun)
	defer b.calls.Add(-1)
	full := b.calls.Add(1) > maxCalls
	f := b.fleet.Load()
	switch {
	case budget < least || ctx.Err() != nil:
		refuse(ops, errLate)
	case full:
		refuse(ops, errFull)
	case f == nil:
		refuse(ops, b.unknown.Load())
	default:
		c := &call{backend: b, ops: ops, ends: begun.Add(budget), budget: budget}
		c.plan(f)
		c.send(ctx)
		c.await(ctx)
	}
}

// refuse fails all ops.
func refuse(ops []backend.Op, e *Error) {
	for i := range ops {
		ops[i].Decision, ops[i].Err = engine.Decision{}, e
	}
}

// budget is how long a caller can wait.
func (b *Backend) budget(ctx context.Context, now time.Time) time.Duration {
	budget := b.config.OpTimeout
	if budget < 0 {
		budget = patience
	}
	if deadline, ok := ctx.Deadline(); ok {
		left := deadline.Sub(now) - margin
		if b.config.OpTimeout < 0 || left < budget {
			return left
		}
	}
	return budget
}

// connected counts connections.
func (b *Backend) connected(delta int) {
	b.counting.Lock()
	defer b.counting.Unlock()
	b.active += delta
	if f := b.config.Observer.Connections; f != nil {
		f(b.active)
	}
}

func (b *Backend) event(e Event) {
	if f := b.config.Observer.Event; f != nil {
		f(e)
	}
}
