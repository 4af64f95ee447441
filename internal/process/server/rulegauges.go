package server

import (
	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// readyLimits is the number of rules whose limits have a gauge.
const readyLimits = 1000

// ruleGauges reports the number of active controls, and the limits of the first controls and of the first rules.
func (v *Server) ruleGauges(to *stats.Values) {
	table := v.controls.Overrides().Load()
	for _, k := range override.Kinds() {
		to.Gauge(stats.Controls, float64(table.Count(k)), k.String())
	}
	set, tally := v.limiter.Tallies()
	if set == nil {
		return
	}
	for _, c := range table.Numbers() {
		if set.Domain([]byte(c.Domain)) == nil { // only domains with rules bound the label
			continue
		}
		item := descriptors.RateLimit{Unit: c.To.Unit, Multiplier: max(1, c.To.Multiplier)}
		rule := ""
		if r := v.limiter.Matched([]byte(c.Domain), c.Match()); r != nil {
			rule = r.Path
		}
		to.Gauge(stats.ControlLimit, float64(c.To.Number()), c.ID, c.Domain, c.LimitName, rule, item.WindowText())
	}
	shown := 0
	for r := range set.Rules() {
		if shown++; shown > readyLimits {
			return
		}
		if r.Reserve != nil {
			n := tally(r)
			if to.Gauge(stats.ReservedHits, float64(n.Reserved), r.Path); r.Reserve.Learn.Percentile > 0 {
				to.Gauge(stats.LearnedEstimate, float64(n.Estimate), r.Path)
			}
		}
		for _, item := range r.RateLimits.All() {
			if !r.Unlimited {
				to.Gauge(stats.RuleLimit, float64(item.Number()), item.Limit.Algorithm.String(), item.Name, r.Path, item.WindowText())
			}
		}
	}
}
