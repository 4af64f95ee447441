package limiter

import (
	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Class classifies the decision on a request. Each answered request has exactly one class.
type Class uint8

// The classes. If several apply to a request, the last one is its class.
const (
	ClassOK         Class = iota // admitted
	ClassShadow                  // admitted only because of shadow mode
	ClassLateCharge              // charged for a request that has already run, which decides nothing
	ClassOverLimit               // rejected by a rule
	ClassFallback                // decided by on_failure, because the backend failed
	ClassControl                 // blocked or admitted by a control
	classes
)

// String returns the class as in the label verdict of ratelimitd_decisions_total.
func (c Class) String() string {
	return [classes]string{"ok", "shadow", "late_charge", "over_limit", "fallback", "control"}[c]
}

// class returns the class of the decided request p: the highest class of its descriptors. If a descriptor rejects the request, controls
// and fallbacks that admit other descriptors do not count, because they did not decide the request. A late charge rejects nothing, even
// if the answer is OVER_LIMIT because of it.
func (l *Limiter) class(p *Scratch) (c Class) {
	if p.blocked {
		return ClassControl
	}
	statuses := p.verdict.Statuses
	rejected := false
	for i := range statuses {
		rejected = rejected || p.verdict.Over && statuses[i].Outcome.Rejects()
	}
	for i := range statuses {
		c = max(c, l.partClass(&p.parts[i], &statuses[i], rejected))
	}
	return c
}

// partClass returns the class of one descriptor of a request that was rejected or admitted.
func (l *Limiter) partClass(t *part, s *Status, rejected bool) Class {
	switch decides := !rejected || s.Outcome.Rejects(); {
	case t.Outcome == Allowed && decides:
		return ClassControl
	case t.fallback != descriptors.FailDefault && decides:
		return ClassFallback
	case s.Outcome == ChargedLate:
		return ClassLateCharge
	case rejected && s.Outcome.Rejects():
		return ClassOverLimit
	case s.Outcome == Shadowed:
		return ClassShadow
	}
	return ClassOK
}

// Bounds on the series of decisions. Further domains share the series [count.Other]. Domains without rules share unknownDomains, because
// callers choose their names.
const (
	maxDecidedDomains = 1000
	unknownDomains    = "__unknown__"
)

// decisions counts the requests of a domain by their class.
type decisions [classes]*count.Counter

// newDecisions creates the counters of a domain.
func (c *counts) newDecisions(domain string) *decisions {
	var n decisions
	for class := range classes {
		n[class] = c.metrics.Count(Decisions, domain, class.String())
	}
	return &n
}

// decisionsOf returns the counters of a new domain.
func (c *counts) decisionsOf(domain string) *decisions {
	if len(c.byDomain) < maxDecidedDomains {
		return c.newDecisions(domain)
	}
	return c.newDecisions(count.Other)
}

// decided counts a decided request by its class.
func (c *counts) decided(p *Scratch) {
	n := c.outside
	if p.counts != nil {
		n = p.counts.decisions
	}
	n[p.verdict.Class].Add(1)
}

// Decisions returns the number of requests by class since the process started.
func (l *Limiter) Decisions() (sum [classes]uint64) {
	l.setting.Lock()
	defer l.setting.Unlock()
	seen := map[*count.Counter]bool{}
	add := func(all *decisions) {
		for class, n := range all {
			if !seen[n] {
				seen[n] = true
				sum[class] += n.Load()
			}
		}
	}
	add(l.counts.outside)
	for _, d := range l.counts.byDomain {
		add(d.decisions)
	}
	return sum
}
