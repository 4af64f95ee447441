package limiter

import (
	"math"
	"slices"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// takes reports whether t spends hits.
func (t *part) takes() bool { return !t.negative && t.hits > 0 }

// lateCharge reports whether t charges for a request that has already run: its rule says so, or it ends a reservation.
func (t *part) lateCharge() bool {
	return t.reserving == settles || t.takes() && (t.reserving == charges || t.limits.Len() > 0 && t.limits.At(0).Limit.LateCharge)
}

// due reports whether t is carried out whatever becomes of the descriptors beside it.
func (t *part) due() bool { return t.negative || t.lateCharge() }

// shadow reports whether a refusal of t is only counted. The rule's mode does not apply to an override.
func (t *part) shadow() bool { return t.rule != nil && !t.override && t.match.Rule.Shadow }

// quota reports whether t is in quota mode: one of several buckets of which it is enough that one admits.
func (l *Limiter) quota(t *part) bool {
	return l.config.Quota || t.rule != nil && !t.override && t.match.Rule.Quota
}

// refused reports whether t's limits refused it. Giving back is never refused.
func (p *Scratch) refused(t *part) bool {
	return t.op >= 0 && !t.negative && p.ops[t.op].Decision.Admitted == 0
}

// over returns the verdict on the request before global shadow mode: whether a descriptor that is not in quota mode is
// over, or there are descriptors in quota mode and all of those are over. Descriptors without a limit in force do not
// take part.
func (l *Limiter) over(p *Scratch) bool {
	switch {
	case p.steered.blocked:
		return true
	case len(p.groups) > 0:
		return l.groupsOver(p)
	}
	quota, quotaOver := 0, 0
	for i := range p.parts {
		t := &p.parts[i]
		if t.op < 0 {
			continue
		}
		over := p.refused(t) && !t.shadow()
		switch {
		case !l.quota(t):
			if over {
				return true
			}
		case over:
			quotaOver++
			fallthrough
		default:
			quota++
		}
	}
	return quota > 0 && quota == quotaOver
}

// unmatched makes v the verdict on n descriptors that match no rule.
func (v *Verdict) unmatched(n int) {
	v.Over, v.Header, v.Reservation = false, -1, ""
	v.Statuses = slices.Grow(v.Statuses[:0], n)[:n]
	clear(v.Statuses)
	v.GroupBy, v.Groups = nil, v.Groups[:0]
}

// fold turns the backend's decisions into the verdict.
func (l *Limiter) fold(p *Scratch) {
	v := &p.verdict
	v.unmatched(len(p.parts))
	for i := range p.parts {
		l.status(p, i, &v.Statuses[i])
	}
	v.Over = l.over(p) && !l.config.Shadow || p.steered.blocked
	v.Header = l.header(p)
	l.quotaGroups(p)
}

// status fills in s, the answer to the i-th part.
func (l *Limiter) status(p *Scratch, i int, s *Status) {
	t := &p.parts[i]
	s.Rule = t.match.Rule
	switch {
	case t.blocked:
		s.block(t)
		return
	case t.allowed:
		s.allow(t)
		return
	case t.unlimited:
		s.Unlimited, s.Remaining = true, math.MaxUint32
		return
	case t.op < 0:
		s.Unasked = p.steered.blocked || t.reserving == forged
		return
	}
	d := &p.ops[t.op].Decision
	s.Decision = *d
	s.RateLimit, s.Limits = t.limits.At(d.Strictest), &t.limits
	s.Override = t.override
	if t.control != nil {
		s.Control = t.decider(p.steered.found[i], s.RateLimit)
	}
	s.Quota, s.ChargedLate = l.quota(t), t.lateCharge()
	s.Refused = p.refused(t)
	s.Over = s.Refused && !t.shadow()
	if !s.Refused {
		s.Remaining = uint32(min(t.left(d), math.MaxUint32))
	}
}

// left returns what is left after d, which admitted t.
func (t *part) left(d *engine.Decision) uint64 {
	if t.negative || t.unspent {
		return d.Left
	}
	return d.Left - min(t.hits, d.Left)
}

// header returns the index of the status that response headers describe. Of those that callers may be told, that is the first
// one that is blocked, or else the last one that is over and refuses alone, as it is not in quota mode or belongs to all groups,
// or else the first of those with the least remaining; −1 if no limit is reported.
func (l *Limiter) header(p *Scratch) int {
	v := &p.verdict
	least, enforced := -1, -1
	for i := range v.Statuses {
		s := &v.Statuses[i]
		if s.RateLimit == nil || s.Untold() {
			continue
		}
		if p.parts[i].blocked {
			return i
		}
		if s.Over && (!l.quota(&p.parts[i]) || len(p.groups) > 0 && p.groups[i] == AnyGroup) {
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
