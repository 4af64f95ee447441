package limiter

import (
	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Tally is what a rule has done since the process started.
type Tally struct {
	Allowed  uint64 // hits within the limits, or unlimited
	Rejected uint64 // requests that it rejected
}

// Tallies returns the current rules, or nil, and a function that returns the tally of one of them. A tally is the sum of the
// counters that metrics have of a rule, so two rules that share a counter both report its hits.
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
		counts := s.rules[r.Index].ruleCounts
		if n := counts.fixed.Load(); n != nil {
			add(n)
		}
		counts.dynamic.Each(add)
		return sum
	}
}

// readyLimits is how many rules have a gauge of their limits.
const readyLimits = 1000

// Gauges reports how many controls are in force, and the limits of the first of them and of the first rules.
func (l *Limiter) Gauges(v *stats.Values) {
	table := l.config.Overrides.Load()
	for _, k := range override.Kinds() {
		v.Gauge(stats.Controls, float64(table.Count(k)), k.String())
	}
	s := l.rules.Load()
	if s == nil {
		return
	}
	for _, c := range table.Numbers() {
		if d := s.set.Domain([]byte(c.Domain)); d != nil { // else no rules bound the label
			item := descriptors.RateLimit{Unit: c.To.Unit, Multiplier: max(1, c.To.Multiplier)}
			rule := ""
			if m, _ := s.match(d, c.Match()); m.Rule != nil {
				rule = m.Rule.Path
			}
			v.Gauge(stats.ControlLimit, float64(c.To.RequestsPerUnit), c.ID, c.Domain, c.LimitName, rule, item.WindowText())
		}
	}
	shown := 0
	for r := range s.set.Rules() {
		if shown++; shown > readyLimits {
			return
		}
		if r.Reserve != nil {
			v.Gauge(stats.ReservedHits, float64(s.rules[r.Index].reserved.sum()), r.Path)
		}
		for _, item := range r.RateLimits.All() {
			if !r.Unlimited {
				v.Gauge(stats.RuleLimit, float64(item.RequestsPerUnit), item.Limit.Algorithm.String(), item.Name, r.Path, item.WindowText())
			}
		}
	}
}
