// Package limiter decides requests, in five phases. Resolve finds the limits that are in force for each descriptor (resolve.go).
// Plan makes the operations on counters (plan.go). Charge has the backend decide them (charge.go), or a fallback where the backend
// fails (fallback.go). Fold makes the verdict (fold.go), and record counts it (record.go). [Limiter.Decide] is the way through all
// of them.
//
// Everything goes through here, so gRPC, HTTP and the admin API cannot disagree. [Limiter.Decide] charges, [Limiter.Explain]
// consumes nothing, and operators ask about the same counters by [Limiter.Peek], [Limiter.Reset] and [Limiter.Grant] (operate.go).
// For limits that clients divide among themselves (RLQS), [Limiter.Lease] takes hits in advance (lease.go).
//
// The values of one request are in a [Scratch]. Its parts, one for each descriptor, collect the results of the phases.
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

// Config says how a Limiter decides. The zero value decides as envoyproxy/ratelimit does by default.
type Config struct {
	Shadow          bool    // SHADOW_MODE
	Quota           bool    // QUOTA_MODE
	StopWhenOver    bool    // STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT
	LocalCache      bool    // LOCAL_CACHE_SIZE_IN_BYTES is set: changes what StopWhenOver spends, and counts over_limit_with_local_cache
	NearLimitRatio  float32 // NEAR_LIMIT_RATIO; 0 means 0.8
	MetricMaxSeries int     // METRIC_MAX_SERIES; 0 means 1,000
	SanitizeDots    bool    // SANITIZE_DESCRIPTOR_METRIC_DOTS: levels of metric keys have underscores for dots
	ReferenceNames  bool    // REDIS_KEY_FORMAT=reference: pass the backend the name that envoyproxy/ratelimit gives each counter

	Secret *descriptors.Secret // makes the keys of counters, and of holders of slots; nil makes plain hashes

	OnFailure descriptors.OnFailure // DEFAULT_ON_FAILURE, for rules without on_failure; FailDefault means FailError
	Local     backend.Backend       // decides for FailLocal; required if a rule or OnFailure says so

	Operators backend.Backend // has the same counters, for what operators ask; nil means the backend itself

	Observer  Observer                        // is shown decisions; may be nil
	Overrides *atomic.Pointer[override.Table] // controls, which override the rules; nil if there are none
	Now       func() time.Time                // by the clock that ends controls; nil means time.Now
	Plans     *atomic.Pointer[plans.Plans]    // of tenants; without them all are on the default

	Unknown func(domain string) // called with each domain without rules that gets a series; may be nil
	// Missing is called, at most ten times a minute, with a key of a request that no rule has in its place, and the keys that rules have
	// there, for people; may be nil.
	Missing func(domain, key, why string)

	Reservations *Sealer // makes ids of reservations; without one, or without a key, requests reserve nothing and are charged immediately
}

// Limiter decides requests by the current rules. Its methods are safe for concurrent use.
type Limiter struct {
	backend backend.Backend
	config  Config
	rules   atomic.Pointer[snapshot]
	counts  *counts
	asked   asked
	setting sync.Mutex // held while rules are compiled into a snapshot
}

// New returns a Limiter without rules; until SetRules is called Decide returns [ErrNoRules].
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
	if c.Reservations == nil {
		c.Reservations = new(Sealer)
	}
	l := &Limiter{backend: b, config: c}
	l.counts = newCounts(m, &l.config)
	return l
}

// SetRules replaces the rules. Counters and metrics are kept.
func (l *Limiter) SetRules(s *descriptors.Set) {
	l.setting.Lock()
	defer l.setting.Unlock()
	l.rules.Store(l.counts.snapshot(s))
}

// Rules returns the current rules, or nil.
func (l *Limiter) Rules() *descriptors.Set {
	if s := l.rules.Load(); s != nil {
		return s.set
	}
	return nil
}

// Reserves reports whether a rule takes reservations.
func (l *Limiter) Reserves() bool {
	s := l.rules.Load()
	return s != nil && s.reserves
}

// ForeignIDs returns how many ids of reservations have come that none of the keys here has made. Only domains that have rules
// count.
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

// Scratch is the memory for deciding one request at a time. Its owner keeps it for the next request, so that deciding allocates
// nothing. The zero value is ready for use. Its slices only ever grow: a pointer into an array that was outgrown stays valid until
// the next request.
type Scratch struct {
	resolution // the limits in force, by descriptor
	operations // the operations that follow from them
	calls      // the calls to the backend that carry these out
	verdict    Verdict

	shed       bool                     // the request is counted as shed
	text       []byte                   // of keys
	groups     []int                    // by the first descriptor of each quota group
	rejections map[*count.Rule]struct{} // what counts the rules that have rejected the request
	sample     Sample
	shown      []Decision
}

// Decide charges r. The verdict, and what it points to, is valid until p is used for another request. Errors wrap one of
// this package's.
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

// decide takes r through the phases. Each builds on the values of those before it.
func (l *Limiter) decide(ctx context.Context, r *Request, p *Scratch) error {
	s, err := l.accept(r)
	if err != nil {
		l.counts.serviceErrors.Add(1)
		return err
	}
	p.table, p.counter = l.config.Overrides.Load(), false
	p.resolve(s, r) // which limits are in force for each descriptor, or what else decides
	if err := l.admit(r, p); err != nil {
		return err
	}
	p.plan(r, false) // the operations on counters
	if p.domain != nil && p.domain.Divides() {
		l.asked.add(r, p)
	}
	err = l.charge(ctx, r, p) // which the backend decides, or a fallback
	if err == nil {
		l.fold(p) // all of that into the verdict
	}
	l.record(r, p, err)
	return err
}

// accept returns the current rules if r can be decided by them. Errors are checked for in the reference's order; bounds
// that the reference does not have come last.
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
