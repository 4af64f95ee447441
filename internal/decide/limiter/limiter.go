// Package limiter decides requests. [Limiter.Decide] runs five phases. Resolve finds the limits in force for each descriptor
// (resolve.go). Plan builds the operations on counters (plan.go). Charge sends them to the backend (charge.go), or to a fallback if the
// backend fails (fallback.go). Fold computes the verdict (fold.go). Record updates the metrics (record.go).
//
// All servers share this package, so gRPC, HTTP and the admin API cannot disagree. [Limiter.Decide] charges; [Limiter.Explain] consumes
// nothing. Operators inspect and change the same counters with [Limiter.Peek], [Limiter.Reset] and [Limiter.Grant] (operate.go). For
// limits that clients divide among themselves (RLQS), [Limiter.Lease] takes hits in advance (lease.go).
//
// A [Scratch] holds the state of one request. Each of its parts collects the results of the phases for one descriptor.
//
// This package is part of the core.
package limiter

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/decide/plans"
	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Config configures a Limiter. The zero value follows the defaults of envoyproxy/ratelimit.
type Config struct {
	Shadow          bool    // SHADOW_MODE
	Quota           bool    // QUOTA_MODE
	StopWhenOver    bool    // STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT
	LocalCache      bool    // LOCAL_CACHE_SIZE_IN_BYTES is set: affects the charges of StopWhenOver, and enables over_limit_with_local_cache
	NearLimitRatio  float32 // NEAR_LIMIT_RATIO; 0 means 0.8
	MetricMaxSeries int     // METRIC_MAX_SERIES; 0 means 1,000
	SanitizeDots    bool    // SANITIZE_DESCRIPTOR_METRIC_DOTS: replace dots in levels of metric keys by underscores
	ReferenceNames  bool    // REDIS_KEY_FORMAT=reference: pass the backend envoyproxy/ratelimit's name of each counter

	Secret *descriptors.Secret // hashes the keys of counters and the names of slot holders; nil means plain hashes

	OnFailure descriptors.OnFailure // DEFAULT_ON_FAILURE, for rules without on_failure; FailDefault means FailError
	Local     backend.Backend       // decides for FailLocal; required if a rule or OnFailure uses it

	Operators backend.Backend // serves operators from the same counters; nil means the backend itself

	Observer  Observer                        // receives decisions; may be nil
	Overrides *atomic.Pointer[override.Table] // the operators' controls; nil means none
	Now       func() time.Time                // the clock that ends controls; nil means time.Now
	Plans     *atomic.Pointer[plans.Plans]    // the tenants' plans; nil means that every tenant is on the default plan

	Unknown func(domain string) // called once for each domain without rules that gets its own series; may be nil
	// Missing is called, at most ten times a minute, with a request's key that matches no rule at its level, and with a text that lists the
	// keys that rules have there. It may be nil.
	Missing func(domain, key, why string)

	SinglesAfter time.Duration // how long counters are watched before they count as used once each; 0 means ten minutes

	Reservations *Sealer // makes reservation IDs; if nil or without a key, requests reserve nothing and are charged immediately
}

// Limiter decides requests by the current rules. Its methods are safe for concurrent use.
type Limiter struct {
	backend backend.Backend
	config  Config
	rules   atomic.Pointer[snapshot]
	counts  *counts
	demand  demand
	setting sync.Mutex // serializes SetRules; guards counts.rules and counts.byDomain
}

// New returns a Limiter without rules. Decide returns [ErrNoRules] until SetRules is called.
func New(b backend.Backend, m Metrics, c Config) *Limiter {
	if c.NearLimitRatio == 0 {
		c.NearLimitRatio = 0.8
	}
	if c.MetricMaxSeries == 0 {
		c.MetricMaxSeries = 1000
	}
	if c.OnFailure == descriptors.FailDefault {
		c.OnFailure = descriptors.FailError
	}
	if c.Operators == nil {
		c.Operators = b
	}
	if c.Overrides == nil {
		c.Overrides = new(atomic.Pointer[override.Table])
	}
	if c.Plans == nil {
		c.Plans = new(atomic.Pointer[plans.Plans])
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.SinglesAfter == 0 {
		c.SinglesAfter = singlesAfter
	}
	if c.Reservations == nil {
		c.Reservations = new(Sealer)
	}
	l := &Limiter{backend: b, config: c}
	l.counts = newCounts(m, &l.config)
	return l
}

// SetRules replaces the rules. Counters and metrics persist.
func (l *Limiter) SetRules(s *descriptors.Set) {
	l.setting.Lock()
	defer l.setting.Unlock()
	l.rules.Store(l.counts.snapshot(s))
}

// Rules returns the current rules, or nil before the first SetRules.
func (l *Limiter) Rules() *descriptors.Set {
	if s := l.rules.Load(); s != nil {
		return s.set
	}
	return nil
}

// Reserves reports whether any rule takes reservations.
func (l *Limiter) Reserves() bool {
	s := l.rules.Load()
	return s != nil && s.reserves
}

// ForeignIDs returns the number of reservation IDs received that no key of this process made. It counts only domains that have rules.
func (l *Limiter) ForeignIDs() (ids uint64) {
	s := l.rules.Load()
	if s == nil {
		return 0
	}
	for _, d := range s.domains {
		if n := d.reservations.Load(); n != nil {
			ids += n.foreign.Load()
		}
	}
	return ids
}

// Scratch is the memory for deciding one request at a time. Reusing it for the next request avoids allocations. The zero value is ready
// for use. Its slices only grow: a pointer into an outgrown array stays valid until the next request.
type Scratch struct {
	resolution // the limits in force, by descriptor
	operations // the operations on their counters
	calls      // the backend calls that carry out the operations
	verdict    Verdict

	shed       bool                     // the request has been counted as shed
	text       []byte                   // buffer for keys
	groups     []int                    // indexed by the first descriptor of each quota group
	rejections map[*count.Rule]struct{} // the counters of the rules that rejected the request
	sample     Sample
	shown      []Decision
}

// Decide charges r. The verdict and everything it points to are valid until the next use of p. Every error wraps one of this package's
// errors.
func (l *Limiter) Decide(ctx context.Context, r *Request, p *Scratch) (*Verdict, error) {
	p.parts, p.shed = p.parts[:0], false
	err := l.decide(ctx, r, p)
	if l.wanted(r, p) {
		l.observe(ctx, r, p, err)
	}
	if err != nil {
		return nil, err
	}
	return &p.verdict, nil
}

// decide runs the phases on r, each on the results of those before.
func (l *Limiter) decide(ctx context.Context, r *Request, p *Scratch) error {
	s, err := l.accept(r)
	if err != nil {
		l.counts.serviceErrors.Add(1)
		return err
	}
	p.table, p.counter = l.config.Overrides.Load(), false
	p.resolve(s, r) // the limits in force for each descriptor, or another source of its decision
	if err := l.admit(r, p); err != nil {
		return err
	}
	p.plan(r, false) // the operations on counters
	if p.domain != nil && p.domain.Divides() {
		l.demand.add(r, p)
	}
	err = l.charge(ctx, r, p) // carries them out in the backend, or decides by a fallback
	if err == nil {
		l.fold(p) // computes the verdict
	}
	l.record(r, p, err)
	return err
}

// accept returns the current rules, or the error that makes r invalid. It checks in the order of the reference; bounds that the reference
// lacks come last.
func (l *Limiter) accept(r *Request) (*snapshot, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	s := l.rules.Load()
	if s == nil {
		return nil, ErrNoRules
	}
	return s, r.withinBounds()
}
