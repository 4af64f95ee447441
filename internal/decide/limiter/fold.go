package limiter

import (
	"math"
	"slices"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// QuotaGroup summarizes a request's descriptors in quota mode that have equal values of the keys of quota_group_by.
type QuotaGroup struct {
	First     int    // index of the first descriptor
	Over      bool   // a limit of the group, or one that belongs to all groups, is exceeded
	Remaining uint64 // the least remaining of these limits, at most 2^32 − 1; 0 if the group is over
}

// takes reports whether t consumes hits.
func (t *part) takes() bool { return !t.Negative && t.Hits > 0 }

// lateCharge reports whether t charges for a request that has already run: it settles a reservation, or its rule charges late.
func (t *part) lateCharge() bool {
	return t.reserving == settles || t.takes() && (t.reserving == charges || t.Limits.Len() > 0 && t.Limits.At(0).Limit.LateCharge)
}

// checksBudget reports whether t checks a limit that its charge will exceed if nothing is left.
func (t *part) checksBudget() bool {
	return !t.Negative && t.Hits == 0 && t.Limits.Len() > 0 && t.Limits.At(0).Limit.LateCharge
}

// due reports whether t is carried out regardless of the other descriptors.
func (t *part) due() bool { return t.Negative || t.lateCharge() }

// shadow reports whether a rejection by t is only counted. The rule's mode does not apply to an override.
func (t *part) shadow() bool { return t.Rule != nil && !t.Override && t.Rule.Shadow }

// quota reports whether t is in quota mode: it is one of several buckets, and the request passes if one of them admits it.
func (l *Limiter) quota(t *part) bool {
	return l.config.Quota || t.Rule != nil && !t.Override && t.Rule.Quota
}

// decides reports whether t rejects the request on its own: it is not in quota mode, or belongs to all groups.
func (l *Limiter) decides(t *part) bool { return t.group == AnyGroup || !l.quota(t) }

// rejected reports whether the limits of t rejected it. A refund is never rejected.
func (p *Scratch) rejected(t *part) bool {
	return t.op >= 0 && !t.Negative && p.ops[t.op].Decision.Admitted == 0
}

// over reports whether the request is over its limits, ignoring global shadow mode. It is if a descriptor that decides on its own is
// over, or if there are quota groups and each has a descriptor that is over. Descriptors without an operation do not count.
func (l *Limiter) over(p *Scratch) bool {
	if p.blocked {
		return true
	}
	const within, over = 1, 2
	var groups []int // result of each group; 0 if it has no descriptor in quota mode
	for i := range p.parts {
		t := &p.parts[i]
		if t.op < 0 {
			continue
		}
		is := within
		if p.rejected(t) && !t.shadow() {
			is = over
		}
		switch {
		case !l.decides(t):
			if groups == nil {
				groups = p.byGroup()
			}
			groups[t.group] = max(groups[t.group], is)
		case is == over:
			return true
		}
	}
	return groups != nil && !slices.Contains(groups, within)
}

// byGroup returns a zeroed slice with one element per group, indexed by the group's first descriptor.
func (p *Scratch) byGroup() []int {
	n := len(p.parts)
	p.groups = slices.Grow(p.groups[:0], n)[:n]
	clear(p.groups)
	return p.groups
}

// fold combines all decisions into the verdict.
func (l *Limiter) fold(p *Scratch) {
	v, n := &p.verdict, len(p.parts)
	v.Statuses = slices.Grow(v.Statuses[:0], n)[:n]
	clear(v.Statuses)
	for i := range p.parts {
		l.status(p, i, &v.Statuses[i])
	}
	v.Over = p.blocked || !l.config.Shadow && l.over(p)
	v.Header = l.header(p)
	v.GroupBy, v.Groups = nil, v.Groups[:0]
	if p.domain != nil && len(p.domain.QuotaGroupBy) > 0 {
		v.GroupBy = p.domain.QuotaGroupBy
		l.quotaGroups(p)
	}
	v.Class = l.class(p)
	v.Reservation = l.sealed(p)
}

// status sets s to the status of the i-th descriptor.
func (l *Limiter) status(p *Scratch, i int, s *Status) {
	t := &p.parts[i]
	s.Rule = t.Rule
	s.Outcome = l.outcome(p, t)
	switch t.Outcome {
	case Blocked:
		s.Over, s.Control, s.RateLimit = true, t.Control, t.Limits.At(0)
		left := max(t.Control.Until.Sub(l.config.Now()), 0)
		s.Decision.RetryAfter, s.Decision.ResetAfter = left, left
	case Allowed:
		s.Control, s.Remaining = t.Control, math.MaxUint32
	case Unlimited:
		s.Remaining = math.MaxUint32
	case NoLimit, Replaced, Skipped, Admitted, Rejected, Shadowed, ChargedLate, Failed:
	case Undecided:
		if t.op >= 0 {
			l.decided(p, t, s)
		}
	}
}

// outcome returns the outcome of t.
func (l *Limiter) outcome(p *Scratch, t *part) Outcome {
	if t.Outcome != Undecided {
		return t.Outcome
	}
	switch {
	case t.op < 0 || p.blocked && !t.due():
		return Skipped
	case t.lateCharge():
		return ChargedLate
	case !p.rejected(t):
		return Admitted
	case t.shadow() || l.config.Shadow:
		return Shadowed
	}
	return Rejected
}

// decided sets s to the status of a descriptor decided by its limits.
func (l *Limiter) decided(p *Scratch, t *part, s *Status) {
	d := &p.ops[t.op].Decision
	s.Decision = *d
	s.RateLimit, s.Limits = t.Limits.At(d.Strictest), &t.Limits
	s.Override = t.Override
	s.Control = t.decider(s.RateLimit)
	s.Quota = l.quota(t)
	s.Over = p.rejected(t) && !t.shadow() && s.Outcome != Skipped
	if !p.rejected(t) {
		s.Remaining = t.left(d)
	}
}

// left returns the hits left after d, which admitted t.
func (t *part) left(d *engine.Decision) uint64 {
	if t.Negative || t.spent != charged {
		return d.Left
	}
	return d.Left - min(t.Hits, d.Left)
}

// header returns the index of the status that response headers describe, or −1 if no limit is reported. It ignores hidden statuses. It
// prefers the first blocked status, then the last one that is over and decides on its own, then the first one with the least remaining.
func (l *Limiter) header(p *Scratch) int {
	v := &p.verdict
	least, enforced := -1, -1
	for i := range v.Statuses {
		s, t := &v.Statuses[i], &p.parts[i]
		switch {
		case s.RateLimit == nil || s.Hidden():
			continue
		case t.Outcome == Blocked:
			return i
		case s.Over && l.decides(t):
			enforced = i
		}
		if least < 0 || s.Remaining < v.Statuses[least].Remaining {
			least = i
		}
	}
	if enforced >= 0 {
		return enforced
	}
	return least
}

// quotaGroups sets the groups of the verdict.
func (l *Limiter) quotaGroups(p *Scratch) {
	v := &p.verdict
	all := QuotaGroup{Remaining: math.MaxUint32} // limits that belong to all groups
	groups := p.byGroup()                        // index in v.Groups, plus 1
	for i := range p.parts {
		t, s := &p.parts[i], &v.Statuses[i]
		switch {
		case t.op < 0 || !l.quota(t):
			continue
		case t.group == AnyGroup:
			s.Group = AnyGroup
			all.add(s)
			continue
		case groups[t.group] == 0:
			v.Groups = append(v.Groups, QuotaGroup{First: i, Remaining: math.MaxUint32})
			groups[t.group] = len(v.Groups)
		}
		s.Group = groups[t.group] - 1
		v.Groups[s.Group].add(s)
	}
	for i := range v.Groups {
		g := &v.Groups[i]
		g.Over, g.Remaining = g.Over || all.Over, min(g.Remaining, all.Remaining)
	}
}

// add adds the status of a descriptor to its group. A shadowed one has nothing remaining but is not over, so it does not count.
func (g *QuotaGroup) add(s *Status) {
	g.Over = g.Over || s.Over
	if s.Over || !s.Exceeded() {
		g.Remaining = min(g.Remaining, s.Remaining)
	}
}
