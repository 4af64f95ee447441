package limiter

import (
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/stats"
	"github.com/ratelimitd/ratelimitd/internal/tenants"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Bounds on series that depend on requests, in addition to [Config.MetricMaxSeries].
const (
	maxUnknownDomains = 100 // <domain>.domain_not_found
	maxOverrideKeys   = 100 // of each domain
	maxShedDomains    = 1000
	meanKeyText       = 128 // bytes that requests add to names, on average; more makes the names fewer
)

// readyFallbacks is how many rules have their series of fallbacks from the start, at 0. Those of further rules appear
// with the first fallback: a set of a hundred thousand rules must not make as many series that nobody needs.
const readyFallbacks = 1000

// readyDomains is the same for domains and their series of what is shed.
const readyDomains = 100

// ignored says why an override is ignored.
type ignored uint8

const (
	notIgnored ignored = iota
	ignoredNotAllowed
	ignoredInvalid
)

// counts knows where everything is counted. It outlives the rules, so that a reload continues every count.
type counts struct {
	registry  *stats.Registry
	nearRatio float32
	maxSeries int
	stop      bool // see Config.StopWhenOver

	localCache bool // see Config.LocalCache
	undotted   bool // see Config.SanitizeDots
	sealer     *Sealer

	serviceErrors, backendErrors, giveBackErrors, globalShadow *stats.Counter

	onFailure descriptors.OnFailure // see Config.OnFailure
	overrides fallbacks             // of overrides that match no rule

	domains bounded[stats.Counter] // of requests for domains without rules
	unknown func(domain string)    // see Config.Unknown
	outside *decisions             // about requests for those
	sheds   bounded[sheds]         // by domain

	controls bounded[stats.Counter] // of what each decided, by ID
	rules    map[string]*ruleCounts // by identity; guarded by Limiter.setting
	known    map[string]*domain     // by name; guarded by Limiter.setting

	shedAll [shedByStore + 1]stats.Counter // requests of all domains
}

// domain counts what belongs to a domain but to no rule.
type domain struct {
	name                string
	decisions           *decisions
	overrides           bounded[stats.Rule]
	notAllowed, invalid *stats.Counter               // overrides ignored, by reason
	sheds               atomic.Pointer[sheds]        // nil until needed
	reservations        atomic.Pointer[reservations] // nil until a rule has some
}

func newCounts(r *stats.Registry, c Config) *counts {
	n := &counts{
		registry:       r,
		nearRatio:      c.NearLimitRatio,
		maxSeries:      c.MetricMaxSeries,
		stop:           c.StopWhenOver,
		localCache:     c.LocalCache,
		undotted:       c.SanitizeDots,
		sealer:         c.Reservations,
		onFailure:      c.OnFailure,
		unknown:        c.Unknown,
		serviceErrors:  r.Counter(stats.ShouldRateLimitError, "service_error"),
		backendErrors:  r.Counter(stats.ShouldRateLimitError, "redis_error"),
		globalShadow:   r.Counter(stats.GlobalShadowMode),
		giveBackErrors: r.Counter(stats.GiveBackErrorsTotal),
		rules:          make(map[string]*ruleCounts),
		known:          make(map[string]*domain),
	}
	n.outside = n.newDecisions(unknownDomains)
	n.domains.bound(maxUnknownDomains, meanKeyText)
	n.sheds.bound(maxShedDomains, meanKeyText)
	n.controls.bound(maxControls, meanKeyText)
	n.readyFallback(&n.overrides, overrideRule, c.OnFailure)
	return n
}

// snapshot is a set of rules with what is needed to decide by it.
type snapshot struct {
	set     *descriptors.Set
	rules   []rule                          // by Rule.Index
	domains map[*descriptors.Domain]*domain // of the set

	secret         *descriptors.Secret // of the keys of counters; may be nil
	sealer         *Sealer
	reserves       bool             // a rule takes reservations
	referenceNames bool             // operations carry the reference's names
	tenants        *tenants.Tenants // nil if nobody says who is on which plan
	onFailure      descriptors.OnFailure
}

// rule is what the limiter adds to a rule of the set.
type rule struct {
	*ruleCounts
	replaces bool // one of its limits replaces others
}

// ruleCounts holds the counters of a rule.
type ruleCounts struct {
	fixed   atomic.Pointer[stats.Rule] // under the key that depends on the rules alone; nil until something is counted
	dynamic bounded[stats.Rule]        // under keys that may contain values of requests

	fallbacks fallbacks
	reserved  reservedNow
}

func (c *counts) snapshot(set *descriptors.Set) *snapshot {
	s := &snapshot{set: set, domains: make(map[*descriptors.Domain]*domain)}
	for r := range set.Rules() {
		id := r.Identity()
		counts, ok := c.rules[id]
		if !ok {
			counts = new(ruleCounts)
			counts.dynamic.bound(c.maxSeries, len(r.Path)+meanKeyText)
			c.rules[id] = counts
		}
		if len(s.rules) < readyFallbacks && r.RateLimits.Len() > 0 {
			policy := r.OnFailure
			if policy == descriptors.FailDefault {
				policy = c.onFailure
			}
			c.readyFallback(&counts.fallbacks, r.Path, policy)
		}
		added := rule{ruleCounts: counts}
		for _, l := range r.RateLimits.All() {
			added.replaces = added.replaces || len(l.Replaces) > 0
		}
		s.rules = append(s.rules, added)
	}
	for d := range set.Domains() {
		k, ok := c.known[d.Name]
		if !ok {
			k = &domain{
				name:       d.Name,
				decisions:  c.decisionsOf(d.Name),
				notAllowed: c.registry.Counter(stats.OverrideIgnoredTotal, d.Name, "not_allowed"),
				invalid:    c.registry.Counter(stats.OverrideIgnoredTotal, d.Name, "invalid"),
			}
			k.overrides.bound(maxOverrideKeys, len(d.Name)+meanKeyText)
			if len(c.known) < readyDomains {
				c.shedOf(k)
			}
			c.known[d.Name] = k
		}
		s.reserves = s.reserves || d.ReserveEntries != nil
		c.readyReservations(k, d)
		s.domains[d] = k
	}
	return s
}

// unknownDomain counts how many descriptors a request asks about in a domain that has no rules.
func (c *counts) unknownDomain(name []byte, asked int) {
	if n := c.domains.find(name); n != nil {
		n.Add(uint64(asked))
		return
	}
	fresh := false
	c.domains.add(name, func() *stats.Counter {
		fresh = true
		return c.domainNotFound(string(name))
	}, func() *stats.Counter {
		return c.domainNotFound(stats.Other)
	}).Add(uint64(asked))
	if fresh {
		c.unknown(string(name))
	}
}

func (c *counts) domainNotFound(name string) *stats.Counter {
	return c.registry.Counter(stats.DomainNotFound, stats.NewKey(name).Text)
}

// mostCounted is how many hits of one descriptor metrics count: the most that Envoy lets its configuration ask for. A cost that it cannot
// read arrives as an enormous number, which would drown all others.
const mostCounted = 1_000_000_000

// counted returns what metrics count of hits.
func counted(hits uint64) uint64 { return min(hits, mostCounted) }

// before counts what is asked for, before the backend is called.
func (c *counts) before(s *snapshot, d *descriptors.Domain, r *Request, p *Scratch) {
	for i := range p.parts {
		t := &p.parts[i]
		switch t.ignored {
		case notIgnored:
		case ignoredNotAllowed:
			s.domains[d].notAllowed.Add(1)
		case ignoredInvalid:
			s.domains[d].invalid.Add(1)
		}
		decided := t.unlimited || (t.blocked || t.allowed) && t.rule != nil // without the backend
		if t.op < 0 && !decided || t.hits == 0 && t.reserving != settles {
			continue
		}
		hits := counted(t.hits)
		n := c.of(s, d, r.Descriptors[i].Entries, p, t)
		switch {
		case t.blocked:
			n.TotalHits.Add(hits)
			n.OverLimit.Add(hits)
		case t.allowed && !t.negative && !t.unlimited:
			n.TotalHits.Add(hits)
			n.WithinLimit.Add(hits)
		case t.unlimited:
			n.UnlimitedHits.Add(hits)
		case t.reserving == settles:
			t.counts = n
		case t.negative:
			n.TotalNegativeHits.Add(hits)
		default:
			n.TotalHits.Add(hits)
			t.counts = n
		}
	}
}

// after counts the outcome.
func (c *counts) after(p *Scratch) {
	if n := p.counts.reservations.Load(); n != nil {
		n.count(p, c.sealer)
	}
	for i := range p.parts {
		switch t := &p.parts[i]; {
		case t.counts == nil:
		case t.reserving == settles:
			difference(t.counts, p.ops[t.op].Decision.Difference)
		default:
			c.outcome(t, &p.ops[t.op])
		}
	}
}

// outcome adds to t's counters what the reference would; t must be one that takes. All it needs is what was left before
// the hits: the limit less that is what was used before.
func (c *counts) outcome(t *part, op *backend.Op) {
	d := &op.Decision
	limit := &t.limits.At(d.Strictest).Limit
	most := limit.Capacity()
	near := c.near(most)
	left := min(d.Left, most)
	used, hits, n := most-left, t.hits, t.counts
	if d.Admitted == 0 {
		over := hits
		if limit.CountRefused && d.Penalty == 0 && !op.Remembered {
			over = hits - min(left, hits)
			n.NearLimit.Add(counted(most - max(near, used)))
		}
		over = counted(over)
		n.OverLimit.Add(over)
		if c.localCache && op.Remembered {
			n.OverLimitWithLocalCache.Add(over)
		}
		if t.shadow() {
			n.ShadowMode.Add(over)
		}
		return
	}
	after := used + hits
	if t.unspent {
		if !c.stop {
			return // what was given back, or never taken, does not count as within the limit
		}
		used, after = used-min(used, hits), used // the reference counts as if these hits were the last ones spent
	}
	n.WithinLimit.Add(counted(hits))
	switch {
	case after <= near:
	case used >= near:
		n.NearLimit.Add(counted(hits))
	default:
		n.NearLimit.Add(counted(after - near))
	}
}

// near returns the number of hits above which a limit counts as near. It is computed as in the reference, except that
// it never exceeds the limit, even if the ratio is above 1.
func (c *counts) near(limit uint64) uint64 {
	if n := float32(limit) * c.nearRatio; n < float32(limit) {
		return uint64(n)
	}
	return limit
}
