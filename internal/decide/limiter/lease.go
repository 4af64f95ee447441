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

// Lease is a request for hits by clients that divide a limit among themselves.
type Lease struct {
	Hits     uint64 // hits to debit, or as many as are left
	Overdraw bool   // debit all Hits even if a token bucket has fewer left, by at most its burst
	Refund   uint64 // hits of an earlier lease to refund, instead of debiting Hits
	Window   int64  // window of that lease, from [Leased.Window]
}

// Leased is the result of [Limiter.Lease].
type Leased struct {
	Effective Effective
	Shadow    bool // shadow mode: clients must reject nothing

	// Set only if the limits of a rule with rlqs decide, outside of shadow mode.
	Key       backend.Key // key of the counter
	Requested uint64      // hits requested of it through this process since the last lease

	// Set only if, in addition, the backend succeeded.
	Granted    uint64        // hits debited
	Left       float64       // hits left afterwards; negative if overdrawn
	ResetAfter time.Duration // until the window ends or the bucket is full
	Window     int64         // window of the debit, as in [engine.Decision]
}

// Divides reports whether the limit of a rule with rlqs decides.
func (d *Leased) Divides() bool {
	return d.Effective.Outcome == Undecided && d.Effective.Rule.RLQS != nil
}

// Lease debits hits from a descriptor's counter for clients that will use them. It uses the same limits in force as [Limiter.Decide]. It
// debits nothing if a control decides, in shadow mode, or for a rule without rlqs. If the backend fails, it returns the limits in force
// and an error. From this call until [Limiter.EndLease], the Limiter counts the hits that requests ask of the counter.
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
	asked := l.demand.counter(op.Key)
	ask.fill(op)
	if err := l.apply(ctx, p.ops, false); err != nil {
		return leased, fmt.Errorf("leasing hits: %w", err)
	}
	leased.Requested = asked.Swap(0)
	leased.answer(op, &ask)
	return leased, nil
}

// fill sets op to the operation that a requests.
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

// answer sets the results from the decision on op.
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

// EndLease stops counting the hits asked of a counter, which [Limiter.Lease] started.
func (l *Limiter) EndLease(key backend.Key) { l.demand.drop(key) }

// OnUnleased sets a function that is called, from time to time, with a requested descriptor whose rule has rlqs but whose counter has no
// lease. The function must return immediately and must not retain the entries.
func (l *Limiter) OnUnleased(f func(domain string, entries []descriptors.Entry)) {
	l.demand.unleased.Store(&f)
}

// unleasedEvery is the minimum interval between two calls of that function.
const unleasedEvery = 5 * time.Millisecond

// demand counts the hits requested of leased counters, whether granted or not.
type demand struct {
	unleased atomic.Pointer[func(domain string, entries []descriptors.Entry)]
	last     atomic.Int64 // time of the last call of unleased, in microseconds

	mu   sync.RWMutex
	hits map[backend.Key]*atomic.Uint64
}

// counter returns the count of a counter. It starts one if necessary.
func (a *demand) counter(key backend.Key) *atomic.Uint64 {
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

func (a *demand) drop(key backend.Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.hits, key)
}

// add counts the takes of a request.
func (a *demand) add(r *Request, p *Scratch) {
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

// Divided returns the limit that clients divide. The rule of e must have rlqs.
func (e *Effective) Divided() *engine.Limit { return &e.Limits.Limits()[0] }
