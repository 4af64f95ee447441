package limiter

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/stats"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// of returns the counters for t, which matched a rule or came with an override.
func (c *counts) of(p *Scratch, entries []descriptors.Entry, t *part) *stats.Rule {
	d := p.domain
	switch {
	case t.Override:
		p.text = d.AppendOverrideMetricKey(p.text[:0], entries)
		known := &p.counts.overrides
		if n := known.Find(p.text); n != nil {
			return n
		}
		return c.addOverride(known, p.text, d, entries)
	case t.Rule.DynamicMetric():
		p.text, _ = t.match.AppendMetricKey(p.text[:0], d, entries)
		if n := t.rule.dynamic.Find(p.text); n != nil {
			return n
		}
		return c.addDynamic(p.text, d, entries, t)
	}
	n := t.rule.fixed.Load()
	if n == nil {
		n = c.registry.Rule(c.key(d, t.match.MetricLevels(entries)))
		t.rule.fixed.Store(n)
	}
	return n
}

// key returns the key of the levels below d, which may be changed.
func (c *counts) key(d *descriptors.Domain, levels []string) stats.Key {
	for i := range levels {
		if c.config.SanitizeDots {
			levels[i] = stats.Underscores(levels[i], ".")
		}
	}
	return stats.NewKey(d.Name, levels...)
}

// addOverride returns the counters for a key not seen before, as long as the domain does not have too many.
func (c *counts) addOverride(known *stats.Bounded[stats.Rule], key []byte, d *descriptors.Domain, entries []descriptors.Entry) *stats.Rule {
	other := func() *stats.Rule { return c.registry.Rule(stats.NewKey(d.Name, stats.Other)) }
	return known.Add(key, func() *stats.Rule {
		levels := make([]string, len(entries))
		for i, e := range entries {
			levels[i] = string(e.Key)
			if len(e.Value) > 0 {
				levels[i] += "_" + string(e.Value)
			}
		}
		return c.registry.Rule(c.key(d, levels))
	}, other)
}

// addDynamic returns the counters for a key of the rule not seen before, as long as there are not too many. Further
// keys are counted under the same key with [stats.Other] in place of every value of the request.
func (c *counts) addDynamic(key []byte, d *descriptors.Domain, entries []descriptors.Entry, t *part) *stats.Rule {
	other := func() *stats.Rule {
		nameless := slices.Clone(entries)
		for i := range nameless {
			nameless[i].Value = []byte(stats.Other)
		}
		return c.registry.Rule(c.key(d, t.match.MetricLevels(nameless)))
	}
	return t.rule.dynamic.Add(key, func() *stats.Rule {
		return c.registry.Rule(c.key(d, t.match.MetricLevels(entries)))
	}, other)
}
