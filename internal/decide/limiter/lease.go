package limiter

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Lease is what clients that divide a limit ask of its counter.
type Lease struct {
	Hits     uint64 // to debit, or as many as are left
	Overdraw bool   // debit all of them, though a token bucket has fewer left: at most its burst more
	Refund   uint64 // hits of an earlier lease, in place of Hits
	Window   int64  // of that lease, from [Leased.Window]
}

// Leased is the result of [Limiter.Lease].
type Leased struct {
	Effective Effective
	Shadow    bool // nothing is to be rejected

	// If the limits of a rule with rlqs decide, and outside of shadow mode.
	Key   backend.Key // of the counter
	Asked uint64      // hits that requests have asked of it here since the last lease

	// If nothing failed either.
	Granted    uint64        // hits that were debited
	Left       float64       // after that; negative if more were debited than there were
	ResetAfter time.Duration // until the window ends, or the bucket is full
	Window     int64         // in which they were debited, as in [engine.Decision]
}

// Divides reports whether the limit of a rule with rlqs decides.
func (d *Leased) Divides() bool {
	return d.Effective.Outcome == Undecided && d.Effective.Rule.RLQS != nil
}

// Lease debits hits from the counter of a descriptor, for clients that will use them. It goes by the same limits in force as
// [Limiter.Decide]. It debits nothing where controls decide, in shadow mode, and for a rule without rlqs. If the backend fails it
// returns the limits in force and an error. From then on, until [Limiter.EndLease], requests about that counter are counted.
func (l *Limiter) Lease(ctx context.Context, domain string, entries []descriptors.Entry, ask Lease) (Leased, error) {
	r := &Request{Domain: []byte(domain), Descriptors: []Descriptor{{Entries: entries, HasHits: true}}}
	s, err := l.accept(r)
	if err != nil {
		return Leased{}, err
	}
	p := new(Scratch)
	p.table = l.config.Overrides.Load()
	p.resolve(s, r)
	p.plan(r, false)
	leased := Leased{Effective: p.parts[0].Effective}
	leased.Shadow = l.config.Shadow || leased.Effective.Rule != nil && leased.Effective.Rule.Shadow
	if !leased.Divides() || leased.Shadow {
		return leased, nil
	}
	op := &p.ops[0]
	leased.Key = op.Key
	asked := l.asked.counter(op.Key)
	ask.fill(op)
	if err := l.apply(ctx, p.ops, false); err != nil {
		return leased, fmt.Errorf("leasing hits: %w", err)
	}
	leased.Asked = asked.Swap(0)
	leased.answer(op, &ask)
	return leased, nil
}

// fill makes op what a asks for.
func (a *Lease) fill(op *backend.Op) {
	op.Lease = backend.LeaseOff
	switch {
	case a.Refund > 0:
		op.Mode, op.Take = backend.Refund, engine.Take{Cost: min(a.Refund, engine.MaxHits), Count: 1, Window: a.Window}
	case a.Hits == 0:
		op.Mode, op.Take = backend.Peek, engine.Take{Cost: 1, Count: 1}
	case a.Overdraw:
		limit := op.Limits[0]
		limit.CountRefused = true
		op.Limits, op.Take = engine.Limits{limit}, engine.Take{Cost: 1, Count: a.Hits}
	default:
		op.Take = engine.Take{Cost: 1, Extra: a.Hits}
	}
}

// answer takes over what op was answered.
func (d *Leased) answer(op *backend.Op, ask *Lease) {
	got, limit := &op.Decision, &op.Limits[0]
	d.ResetAfter, d.Window = got.ResetAfter, got.Window
	if ask.Refund == 0 && ask.Hits > 0 {
		d.Granted = min(got.Admitted, ask.Hits)
	}
	d.Left = float64(got.Left - min(d.Granted, got.Left))
	if ask.Overdraw {
		d.Granted = ask.Hits
		d.Left = float64(limit.Burst) - got.ResetAfter.Seconds()*float64(limit.Hits)/(float64(limit.Window)/1e6)
	}
}

// EndLease ends the count that [Limiter.Lease] began.
func (l *Limiter) EndLease(key backend.Key) { l.asked.drop(key) }

// OnUnleased sets a function that is called, now and then, with a descriptor whose rule has rlqs and of which a request has asked though
// its counter has no lease. It must return immediately and keep no reference to the entries.
func (l *Limiter) OnUnleased(f func(domain string, entries []descriptors.Entry)) {
	l.asked.unleased.Store(&f)
}

// unleasedEvery is the least time between two calls of that function.
const unleasedEvery = 5 * time.Millisecond

// asked counts the hits that requests ask of counters which clients divide, whether they are granted or not.
type asked struct {
	unleased atomic.Pointer[func(domain string, entries []descriptors.Entry)]
	last     atomic.Int64 // time of its last call

	mu   sync.RWMutex
	hits map[backend.Key]*atomic.Uint64
}

// counter returns the count of a counter, which it begins if there is none.
func (a *asked) counter(key backend.Key) *atomic.Uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.hits == nil {
		a.hits = map[backend.Key]*atomic.Uint64{}
	}
	n := a.hits[key]
	if n == nil {
		n = new(atomic.Uint64)
		a.hits[key] = n
	}
	return n
}

func (a *asked) drop(key backend.Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.hits, key)
}

// add counts the takes of a request.
func (a *asked) add(r *Request, p *Scratch) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for k := range p.ops {
		op, t := &p.ops[k], &p.parts[p.owners[k]]
		if op.Mode != backend.Take || t.Rule == nil || t.Rule.RLQS == nil {
			continue
		}
		if n := a.hits[op.Key]; n != nil {
			n.Add(op.Take.Cost)
		} else if f := a.unleased.Load(); f != nil {
			if last, at := a.last.Load(), time.Now().UnixMicro(); at-last > unleasedEvery.Microseconds() && a.last.CompareAndSwap(last, at) {
				(*f)(p.domain.Name, r.Descriptors[p.owners[k]].Entries)
			}
		}
	}
}

// Divided returns the limit that clients divide, of the limits in force of a rule with rlqs.
func (e *Effective) Divided() *engine.Limit { return &e.Limits.Limits()[0] }
