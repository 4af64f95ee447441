package limiter

import (
	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Class says in one word how a request was decided. Each request that gets an answer has exactly one.
type Class uint8

// The classes. Where several apply to a request, the last of them is its class.
const (
	ClassOK         Class = iota // it passes
	ClassShadow                  // it passes, and would be rejected if it were not for shadow mode
	ClassLateCharge              // it charges for a request that has already run, so nothing is decided
	ClassOverLimit               // a rule rejects it
	ClassFallback                // on_failure decides it, because the backend failed
	ClassControl                 // a control blocks it, or lets it pass
	classes
)

// String returns the class as the label verdict of ratelimitd_decisions_total has it.
func (c Class) String() string {
	return [classes]string{"ok", "shadow", "late_charge", "over_limit", "fallback", "control"}[c]
}

// class returns the class of the request that p has decided: the highest class of its descriptors. Where one of them rejects
// the request, controls and fallbacks that let others pass have not decided it, so they do not count. A late charge rejects
// nothing, even if the answer is OVER_LIMIT because of it.
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

// partClass returns the class that one descriptor gives to its request, which is rejected or passes.
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

// Bounds on the series of decisions: further domains are counted together, as [count.Other], and domains without rules as
// unknownDomains, because callers choose their names.
const (
	maxDecidedDomains = 1000
	unknownDomains    = "__unknown__"
)

// decisions counts the requests of a domain by their class.
type decisions [classes]*count.Counter

func (c *counts) newDecisions(domain string) *decisions {
	var n decisions
	for class := range classes {
		n[class] = c.metrics.Count(Decisions, domain, class.String())
	}
	return &n
}

// decisionsOf returns the counters of a domain that is about to be known.
func (c *counts) decisionsOf(domain string) *decisions {
	if len(c.known) < maxDecidedDomains {
		return c.newDecisions(domain)
	}
	return c.newDecisions(count.Other)
}

// decided counts a request that was decided.
func (c *counts) decided(p *Scratch) {
	n := c.outside
	if p.counts != nil {
		n = p.counts.decisions
	}
	n[p.verdict.Class].Add(1)
}

// Decisions returns how many requests of each class there were since the process started.
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
	for _, d := range l.counts.known {
		add(d.decisions)
	}
	return sum
}
