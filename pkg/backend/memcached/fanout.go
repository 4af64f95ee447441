package memcached

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// fanout is one call of Apply, whose ops go out over several connections at once.
type fanout struct {
	backend *Backend
	ops     []backend.Op
	items   []item
	lanes   []*lane
	ends    time.Time // the caller's time
	budget  time.Duration
}

// lane is the items that go over one connection, one after the other. All items of a fanout on one key are in one lane.
type lane struct {
	server *server
	items  []*item
	budget time.Duration // of the caller
	done   chan struct{} // closed when all items are decided
	left   atomic.Bool   // the caller has given up because its time was over
	trial  bool          // it finds out whether a silent server answers again
}

// plan turns ops into items and assigns them to lanes. Looks share the first lane of their server, takes are spread.
func (f *fanout) plan(to *fleet) {
	b := f.backend
	now := b.config.Now()
	f.items = make([]item, 0, len(f.ops))
	for i := range f.ops {
		op := &f.ops[i]
		op.Decision, op.Err = engine.Decision{}, nil
		if e := b.fits(op); e != nil {
			op.Err = e
			continue
		}
		f.items = f.items[:len(f.items)+1]
		it := &f.items[len(f.items)-1]
		b.set(it, i, op, now)
		f.put(it, to.servers[shard(it.key, len(to.servers))])
	}
}

// put assigns it to a lane.
func (f *fanout) put(it *item, s *server) {
	var first, shortest *lane
	lanes := 0
	for _, l := range f.lanes {
		if l.server != s {
			continue
		}
		lanes++
		for _, other := range l.items {
			if other.key == it.key {
				l.items = append(l.items, it)
				return
			}
		}
		if first == nil {
			first = l
		}
		if shortest == nil || len(l.items) < len(shortest.items) {
			shortest = l
		}
	}
	to := shortest
	switch {
	case first != nil && it.looks():
		to = first
	case lanes < maxLanes:
		to = &lane{server: s, budget: f.budget, done: make(chan struct{})}
		f.lanes = append(f.lanes, to)
	}
	to.items = append(to.items, it)
}

// send gives each lane a connection. A lane that gets none in time sends nothing.
func (f *fanout) send(ctx context.Context) {
	for _, l := range f.lanes {
		link, trial, e := l.server.acquire(ctx, len(l.items), time.Until(f.ends))
		l.trial = trial
		if e != nil {
			l.fail(l.items, e)
			close(l.done)
			continue
		}
		go l.run(context.WithoutCancel(ctx), link)
	}
}

// await waits for the lanes as long as the caller can, and fills in the results of the ops.
func (f *fanout) await(ctx context.Context) {
	enough := time.NewTimer(time.Until(f.ends))
	defer enough.Stop()
	late := false
	for _, l := range f.lanes {
		if !late {
			select {
			case <-l.done:
			case <-l.hush():
			case <-enough.C:
				late = true
				f.backend.lag.Note(time.Since(f.ends))
			case <-ctx.Done():
				late = true
			}
		}
		select {
		case <-l.done:
			for _, it := range l.items {
				f.ops[it.at].Decision = it.result
				if it.err != nil {
					f.ops[it.at].Decision, f.ops[it.at].Err = engine.Decision{}, it.err
				}
			}
		default:
			l.left.Store(ctx.Err() == nil || ctx.Err() == context.DeadlineExceeded)
			e := store.Unanswered(l.server.name)
			for _, it := range l.items {
				f.ops[it.at].Err = e
			}
		}
	}
}

// hush returns a channel that is closed when there is nothing to wait for because the server is silent.
func (l *lane) hush() <-chan struct{} {
	if l.trial {
		return nil
	}
	return l.server.hush()
}

// run carries out the items of l. The caller may give up in the meantime.
func (l *lane) run(ctx context.Context, link *link) {
	defer close(l.done)
	s := l.server
	trial := l.trial
	defer func() {
		if trial {
			s.trial.Store(false)
		}
	}()
	begun := time.Now()
	until := begun.Add(remote.RoundTrip(s.backend.config.OpTimeout))
	for rest := l.items; len(rest) > 0; {
		worst, n := l.exchange(link, rest, until)
		rest = rest[n:]
		if len(rest) == 0 {
			break
		}
		if worst == nil || trips(worst) { // otherwise gomemcache closed the connection because of one counter
			l.fail(rest, store.Unsent(remote.Reset, s.name, errBroken.Error()))
			break
		}
		var e *remote.Error
		var again bool
		link, again, e = s.acquire(ctx, len(rest), time.Until(until))
		trial = trial || again
		if e != nil {
			l.fail(rest, e)
			break
		}
	}
	l.report(time.Since(begun))
}

// exchange carries out items until link breaks, releases it, and tells the breaker.
func (l *lane) exchange(link *link, items []*item, until time.Time) (worst *remote.Error, n int) {
	s := l.server
	tell, refused := s.breaker.Begin()
	if refused != nil {
		s.release(link)
		l.fail(items, refused)
		return nil, len(items)
	}
	begun := time.Now()
	n = link.exchange(items, until)
	if worst = worstOf(items[:n]); worst == nil {
		s.answered(begun, n)
	}
	switch took := time.Since(begun); {
	case worst != nil && trips(worst):
		tell(worst)
	case l.left.Load() && remote.TooSlow(took, l.budget):
		tell(store.Slow(s.name))
	default:
		tell(nil)
	}
	s.release(link)
	return worst, n
}

// fail fails items.
func (l *lane) fail(items []*item, e *remote.Error) {
	for _, it := range items {
		it.err = e
	}
}

// worstOf returns the error of items that says most about the server, or nil.
func worstOf(items []*item) (worst *remote.Error) {
	for _, it := range items {
		if it.err != nil && (worst == nil || trips(it.err)) {
			worst = it.err
		}
	}
	return worst
}

// report tells the observer.
func (l *lane) report(took time.Duration) {
	b := remote.Batch{Node: l.server.name, Ops: len(l.items), Duration: took, Err: worstOf(l.items)}
	for _, it := range l.items {
		if it.err != nil {
			b.Failed++
		}
	}
	l.server.backend.config.Observer.Batch(b)
}
