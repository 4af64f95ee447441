package limiter

import (
	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Tally counts the effects of a rule since the process started.
type Tally struct {
	Allowed  uint64 // hits within the limits, or unlimited
	Rejected uint64 // requests rejected by the rule
	Reserved uint64 // hits currently reserved, according to this process's decisions
	Estimate uint64 // hits that a request reserves now if it does not specify them; 0 without reservations
}

// Tallies returns the current rules and a function that returns the tally of one of them; both are nil without rules. A tally adds up the
// rule's metrics, so two rules that share a counter both report its hits.
func (l *Limiter) Tallies() (*descriptors.Set, func(*descriptors.Rule) Tally) {
	s := l.rules.Load()
	if s == nil {
		return nil, nil
	}
	return s.set, func(r *descriptors.Rule) (sum Tally) {
		add := func(n *count.Rule) {
			sum.Allowed += n.WithinLimit.Load() + n.UnlimitedHits.Load()
			sum.Rejected += n.Rejections.Load()
		}
		rule := &s.rules[r.Index]
		counts := rule.ruleCounts
		if n := counts.fixed.Load(); n != nil {
			add(n)
		}
		counts.dynamic.Each(add)
		if sum.Reserved = counts.reserved.sum(); r.Reserve != nil {
			sum.Estimate, _ = rule.costs.estimate(r.Reserve)
		}
		return sum
	}
}
