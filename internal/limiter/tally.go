package limiter

import (
	"github.com/ratelimitd/ratelimitd/internal/stats"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Tally is what a rule has done since the process started.
type Tally struct {
	Allowed uint64 // hits within the limits, or unlimited
	Refused uint64 // requests that it refused
}

// Tallies returns the current rules, or nil, and what returns the tally of one of them. A tally is the sum of the rule's
// counters of metrics, so that rules with a counter in common have its hits in common.
func (l *Limiter) Tallies() (*descriptors.Set, func(*descriptors.Rule) Tally) {
	s := l.rules.Load()
	if s == nil {
		return nil, nil
	}
	return s.set, func(r *descriptors.Rule) (sum Tally) {
		add := func(n *stats.Rule) {
			sum.Allowed += n.WithinLimit.Load() + n.UnlimitedHits.Load()
			sum.Refused += n.Rejections.Load()
		}
		counts := s.rules[r.Index].ruleCounts
		if n := counts.fixed.Load(); n != nil {
			add(n)
		}
		counts.dynamic.each(add)
		return sum
	}
}
