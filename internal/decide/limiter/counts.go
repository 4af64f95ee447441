package limiter

import (
	"cmp"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Bounds on the series that requests can create, in addition to [Config.MetricMaxSeries].
const (
	maxUnknownDomains = 100 // <domain>.domain_not_found
	maxOverrideKeys   = 100 // in each domain
	maxShedDomains    = 1000
	maxControls       = override.MaxNumbers // with series of their own, for their decisions and for the limits they put in force
	meanKeyText       = 128                 // mean length of names from requests in bytes; longer names reduce the number of series
)

// readyFallbacks is the number of rules whose series of fallbacks exist from the start, at 0. Those of other rules appear with the first
// fallback: a hundred thousand rules must not create as many unused series.
const readyFallbacks = 1000

// readyDomains is the number of domains whose series of shed requests exist from the start.
const readyDomains = 100

// counts holds all metrics of a Limiter. It outlives the rules, so a reload continues every count.
type counts struct {
	metrics Metrics
	config  *Config

	serviceErrors, backendErrors, refundErrors, globalShadow *count.Counter

	overrides fallbacks                    // fallbacks of overrides that match no rule
	domains   count.Bounded[count.Counter] // requests for domains without rules
	outside   *decisions                   // decisions on those requests
	sheds     count.Bounded[sheds]         // by domain
	missing   missing

	controls count.Bounded[count.Counter] // decisions of controls, by ID
	rules    map[string]*ruleCounts       // by identity; guarded by Limiter.setting
	byDomain map[string]*domain           // by name; guarded by Limiter.setting

	shedAll [shedByStore + 1]count.Counter // requests of all domains
}

// domain holds the counters of a domain that belong to no rule.
type domain struct {
	name                string
	decisions           *decisions
	overrides           count.Bounded[count.Rule]
	notAllowed, invalid *count.Counter               // ignored overrides, by reason
	sheds               atomic.Pointer[sheds]        // nil until needed
	reservations        atomic.Pointer[reservations] // nil until a rule takes reservations
}

func newCounts(m Metrics, c *Config) *counts {
	n := &counts{
		metrics:       m,
		config:        c,
		serviceErrors: m.Count(ServiceErrors),
		backendErrors: m.Count(BackendErrors),
		globalShadow:  m.Count(GlobalShadow),
		refundErrors:  m.Count(RefundErrors),
		rules:         make(map[string]*ruleCounts),
		byDomain:      make(map[string]*domain),
	}
	n.outside = n.newDecisions(unknownDomains)
	n.domains.Bound(maxUnknownDomains, meanKeyText)
	n.sheds.Bound(maxShedDomains, meanKeyText)
	n.missing.minutes.Bound(maxMissing, meanKeyText)
	n.controls.Bound(maxControls, meanKeyText)
	n.readyFallback(&n.overrides, overrideRule, c.OnFailure)
	return n
}

// snapshot is a set of rules compiled for deciding.
type snapshot struct {
	set     *descriptors.Set
	rules   []rule                          // indexed by Rule.Index
	domains map[*descriptors.Domain]*domain // the set's domains

	config   *Config
	reserves bool // a rule takes reservations
}

// rule is the limiter's data for a rule of the set.
type rule struct {
	*ruleCounts
	replaces bool   // one of its limits replaces others
	costs    *costs // nil unless its estimate is learned
}

// ruleCounts holds the counters of a rule.
type ruleCounts struct {
	fixed   atomic.Pointer[count.Rule] // for the key that depends only on the rules; nil until used
	dynamic count.Bounded[count.Rule]  // for keys that may contain values of requests

	fallbacks fallbacks
	reserved  reservedNow
	habits    atomic.Pointer[habits]
	learned   *costs // nil until a set learns the rule's estimate; guarded by Limiter.setting
}

// snapshot compiles set. It reuses the counters of rules and domains that existed before.
func (c *counts) snapshot(set *descriptors.Set) *snapshot {
	s := &snapshot{set: set, config: c.config, domains: make(map[*descriptors.Domain]*domain)}
	for r := range set.Rules() {
		id := r.Identity()
		counts, ok := c.rules[id]
		if !ok {
			counts = new(ruleCounts)
			counts.dynamic.Bound(c.config.MetricMaxSeries, len(r.Path)+meanKeyText)
			c.rules[id] = counts
		}
		if len(s.rules) < readyFallbacks && r.RateLimits.Len() > 0 {
			c.readyFallback(&counts.fallbacks, r.Path, c.config.policy(r))
		}
		added := rule{ruleCounts: counts}
		if r.Reserve != nil && r.Reserve.Learn.Percentile > 0 {
			counts.learned = cmp.Or(counts.learned, new(costs))
			added.costs = counts.learned
		}
		for _, l := range r.RateLimits.All() {
			added.replaces = added.replaces || len(l.Replaces) > 0
		}
		s.rules = append(s.rules, added)
	}
	for d := range set.Domains() {
		k, ok := c.byDomain[d.Name]
		if !ok {
			k = &domain{
				name:       d.Name,
				decisions:  c.decisionsOf(d.Name),
				notAllowed: c.metrics.Count(OverridesIgnored, d.Name, "not_allowed"),
				invalid:    c.metrics.Count(OverridesIgnored, d.Name, "invalid"),
			}
			k.overrides.Bound(maxOverrideKeys, len(d.Name)+meanKeyText)
			if len(c.byDomain) < readyDomains {
				c.shedOf(k)
			}
			c.byDomain[d.Name] = k
		}
		s.reserves = s.reserves || d.ReserveEntries != nil
		c.readyReservations(k, d)
		s.domains[d] = k
	}
	return s
}

// fallbacks counts the decisions of a rule's fallback, by kind. An element is nil until used.
type fallbacks [descriptors.FailLocal + 1]atomic.Pointer[count.Counter]

// overrideRule is the label of overrides that match no rule.
const overrideRule = "__override__"

// readyFallback creates the counter of a rule's fallback. The fallback error has none, because it decides nothing.
func (c *counts) readyFallback(all *fallbacks, rule string, policy descriptors.OnFailure) {
	if policy != descriptors.FailError {
		c.fallback(all, rule, policy)
	}
}

// fallback returns the counter of a rule's fallback. It creates the counter if necessary.
func (c *counts) fallback(all *fallbacks, rule string, policy descriptors.OnFailure) *count.Counter {
	n := all[policy].Load()
	if n == nil {
		n = c.metrics.Count(Fallbacks, policy.String(), rule)
		all[policy].Store(n)
	}
	return n
}
