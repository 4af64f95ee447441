package limiter

import (
	"errors"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// record counts r and its verdict. If err is not nil there is no verdict, and only the requested hits count.
func (l *Limiter) record(r *Request, p *Scratch, err error) {
	c := l.counts
	switch {
	case p.domain == nil:
		c.unknownDomain(r.Domain, len(r.Descriptors))
	case err != nil:
		c.backendErrors.Add(1)
		c.descriptors(r, p, false)
	default:
		if n := p.counts.reservations.Load(); n != nil {
			n.count(p, c.config.Reservations)
		}
		c.descriptors(r, p, true)
		for i := range p.parts {
			if t := &p.parts[i]; t.op >= 0 && t.rule != nil && !t.Override && t.fallback == descriptors.FailDefault {
				c.habit(p, t, r.hitless(&r.Descriptors[i]))
			}
		}
	}
	if err != nil {
		return
	}
	c.decided(p)
	if l.config.Shadow && !p.blocked && l.over(p) {
		c.globalShadow.Add(1)
	}
	for i := range p.verdict.Statuses {
		if t := p.verdict.Statuses[i].Control; t != nil {
			c.controlled(t)
		}
	}
}

// descriptors counts the hits of each descriptor for its rule and, if there is a verdict, the decisions on them. Each rule that rejects
// the request counts one rejection. A rejected check without hits counts like any other rejection.
func (c *counts) descriptors(r *Request, p *Scratch, verdict bool) {
	rejected := verdict && p.verdict.Over && !p.blocked
	switch {
	case !rejected:
	case p.rejections == nil || len(p.rejections) > maxRejections:
		p.rejections = make(map[*count.Rule]struct{})
	default:
		clear(p.rejections)
	}
	for i := range p.parts {
		t := &p.parts[i]
		switch why := t.Ineffective.Override; {
		case why == nil:
		case errors.Is(why, errNotAllowed):
			p.counts.notAllowed.Add(1)
		default:
			p.counts.invalid.Add(1)
		}
		counts, rejects := t.counts(), rejected && p.verdict.Statuses[i].Outcome.Rejects()
		if !counts && !rejects {
			if t.Outcome == NoLimit && c.config.Missing != nil {
				c.missed(p, r.Descriptors[i].Entries)
			}
			continue
		}
		n := c.of(p, r.Descriptors[i].Entries, t)
		if counts {
			c.hits(n, p, t, verdict)
		}
		if !rejects {
			continue
		}
		if _, again := p.rejections[n]; !again {
			n.Rejections.Add(1)
			p.rejections[n] = struct{}{}
		}
	}
}

// maxRejections is the size of the largest set that is kept for the next request.
const maxRejections = 64

// counts reports whether the hits of t are counted: something must decide on them. The hits of a settlement are its difference.
func (t *part) counts() bool {
	switch t.Outcome {
	case Undecided:
		return t.op >= 0 && (t.Hits > 0 || t.reserving == settles)
	case Unlimited:
		return t.Hits > 0
	case Blocked, Allowed:
		return t.Hits > 0 && t.Rule != nil
	case NoLimit, Replaced, Skipped, Admitted, Rejected, Shadowed, ChargedLate, Failed:
	}
	return false
}

// hits counts the hits of t and, if there is a verdict, how many were within and over the limit.
func (c *counts) hits(n *count.Rule, p *Scratch, t *part, verdict bool) {
	hits := Counted(t.Hits)
	switch {
	case t.Outcome == Blocked:
		n.TotalHits.Add(hits)
		n.OverLimit.Add(hits)
	case t.Outcome == Unlimited || t.Outcome == Allowed && t.Rule.Unlimited && !t.Override:
		n.UnlimitedHits.Add(hits)
	case t.reserving == settles:
		if verdict {
			difference(n, p.ops[t.op].Decision.Difference)
		}
	case t.Negative:
		n.TotalNegativeHits.Add(hits)
	case t.Outcome == Allowed:
		n.TotalHits.Add(hits)
		n.WithinLimit.Add(hits)
	default:
		n.TotalHits.Add(hits)
		if verdict {
			c.outcome(n, t, &p.ops[t.op])
		}
	}
}

// outcome counts the decision on t, which must be a take, as the reference would. It derives the hits used before from those left.
func (c *counts) outcome(n *count.Rule, t *part, op *backend.Op) {
	d := &op.Decision
	limit := &t.Limits.At(d.Strictest).Limit
	most := limit.Capacity()
	near := c.near(most)
	left := min(d.Left, most)
	used, hits := most-left, t.Hits
	if d.Admitted == 0 {
		over := hits
		if limit.CountRefused && d.Penalty == 0 && op.Origin != backend.FromRejection {
			over = hits - min(left, hits)
			n.NearLimit.Add(Counted(most - max(near, used)))
		}
		over = Counted(over)
		n.OverLimit.Add(over)
		if c.config.LocalCache && op.Origin == backend.FromRejection {
			n.OverLimitWithLocalCache.Add(over)
		}
		if t.shadow() {
			n.ShadowMode.Add(over)
		}
		return
	}
	after := used + hits
	if t.spent != charged {
		if !c.config.StopWhenOver {
			return // refunded and unused hits are not within the limit
		}
		used, after = used-min(used, hits), used // like the reference, count as if these hits were the last ones consumed
	}
	n.WithinLimit.Add(Counted(hits))
	switch {
	case after <= near:
	case used >= near:
		n.NearLimit.Add(Counted(hits))
	default:
		n.NearLimit.Add(Counted(after - near))
	}
}

// near returns the number of hits above which a limit counts as near. It computes this like the reference, except that the result never
// exceeds the limit, even if the ratio is above 1.
func (c *counts) near(limit uint64) uint64 {
	if n := float32(limit) * c.config.NearLimitRatio; n < float32(limit) {
		return uint64(n)
	}
	return limit
}

// fellBack counts a decision of t's fallback.
func (c *counts) fellBack(t *part) {
	all, rule := &c.overrides, overrideRule
	if t.rule != nil {
		all, rule = &t.rule.fallbacks, t.Rule.Path
	}
	c.fallback(all, rule, t.fallback).Add(1)
}

// controlled counts a decision of a control.
func (c *counts) controlled(t *override.Control) {
	var room [64]byte
	c.controls.Get(append(room[:0], t.ID...), func(id string) *count.Counter {
		kind := t.Kind.String()
		if id == count.Other {
			kind = count.Other
		}
		return c.metrics.Count(ControlDecisions, id, kind)
	}).Add(1)
}

// unknownDomain counts the descriptors of a request for a domain without rules.
func (c *counts) unknownDomain(name []byte, asked int) {
	fresh := false
	c.domains.Get(name, func(label string) *count.Counter {
		fresh = fresh || label != count.Other
		return c.metrics.Count(UnknownDomains, count.NewKey(label).Text)
	}).Add(uint64(asked))
	if fresh && c.config.Unknown != nil {
		c.config.Unknown(string(name))
	}
}
