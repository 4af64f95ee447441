package limiter

import (
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Bounds on series that depend on requests, in addition to [Config.MetricMaxSeries].
const (
	maxUnknownDomains = 100 // <domain>.domain_not_found
	maxOverrideKeys   = 100 // of each domain
	maxShedDomains    = 1000
	maxControls       = override.MaxNumbers // with a series of their own for what they decided, and for the limit that they put in force
	meanKeyText       = 128                 // bytes that requests add to names, on average; more makes the names fewer
)

// readyFallbacks is how many rules have their series of fallbacks from the start, at 0. Those of further rules appear
// with the first fallback: a set of a hundred thousand rules must not make as many series that are never used.
const readyFallbacks = 1000

// readyDomains is the same for domains and their series of shed requests.
const readyDomains = 100

// counts knows where everything is counted. It outlives the rules, so that a reload continues every count.
type counts struct {
	metrics Metrics
	config  *Config

	serviceErrors, backendErrors, refundErrors, globalShadow *count.Counter

	overrides fallbacks                    // of overrides that match no rule
	domains   count.Bounded[count.Counter] // of requests for domains without rules
	outside   *decisions                   // about requests for those
	sheds     count.Bounded[sheds]         // by domain
	missing   missing

	controls count.Bounded[count.Counter] // of what each decided, by ID
	rules    map[string]*ruleCounts       // by identity; guarded by Limiter.setting
	known    map[string]*domain           // by name; guarded by Limiter.setting

	shedAll [shedByStore + 1]count.Counter // requests of all domains
}

// domain counts what belongs to a domain but to no rule.
type domain struct {
	name                string
	decisions           *decisions
	overrides           count.Bounded[count.Rule]
	notAllowed, invalid *count.Counter               // overrides ignored, by reason
	sheds               atomic.Pointer[sheds]        // nil until needed
	reservations        atomic.Pointer[reservations] // nil until a rule has some
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
		known:         make(map[string]*domain),
	}
	n.outside = n.newDecisions(unknownDomains)
	n.domains.Bound(maxUnknownDomains, meanKeyText)
	n.sheds.Bound(maxShedDomains, meanKeyText)
	n.missing.minutes.Bound(maxMissing, meanKeyText)
	n.controls.Bound(maxControls, meanKeyText)
	n.readyFallback(&n.overrides, overrideRule, c.OnFailure)
	return n
}

// snapshot is a set of rules, with everything that deciding by it needs.
type snapshot struct {
	set     *descriptors.Set
	rules   []rule                          // by Rule.Index
	domains map[*descriptors.Domain]*domain // of the set

	config   *Config
	reserves bool // a rule takes reservations
}

// rule is what the limiter adds to a rule of the set.
type rule struct {
	*ruleCounts
	replaces bool // one of its limits replaces others
}

// ruleCounts holds the counters of a rule.
type ruleCounts struct {
	fixed   atomic.Pointer[count.Rule] // under the key that depends only on the rules; nil until something is counted
	dynamic count.Bounded[count.Rule]  // under keys that may contain values of requests

	fallbacks fallbacks
	reserved  reservedNow
}

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
				notAllowed: c.metrics.Count(OverridesIgnored, d.Name, "not_allowed"),
				invalid:    c.metrics.Count(OverridesIgnored, d.Name, "invalid"),
			}
			k.overrides.Bound(maxOverrideKeys, len(d.Name)+meanKeyText)
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

// fallbacks counts the decisions of a rule's fallback, by kind; an element is nil until there is one.
type fallbacks [descriptors.FailLocal + 1]atomic.Pointer[count.Counter]

// overrideRule stands for overrides that match no rule.
const overrideRule = "__override__"

// readyFallback makes the counter of a rule's fallback. There is none for the fallback error, which decides nothing.
func (c *counts) readyFallback(known *fallbacks, rule string, policy descriptors.OnFailure) {
	if policy != descriptors.FailError {
		c.fallback(known, rule, policy)
	}
}

func (c *counts) fallback(known *fallbacks, rule string, policy descriptors.OnFailure) *count.Counter {
	n := known[policy].Load()
	if n == nil {
		n = c.metrics.Count(Fallbacks, policy.String(), rule)
		known[policy].Store(n)
	}
	return n
}
