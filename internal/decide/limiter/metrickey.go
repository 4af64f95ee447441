package limiter

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// of returns the counters of t, which matched a rule or has an override.
func (c *counts) of(p *Scratch, entries []descriptors.Entry, t *part) *count.Rule {
	d := p.domain
	switch {
	case t.Override:
		p.text = d.AppendOverrideMetricKey(p.text[:0], entries)
		return p.counts.overrides.Get(p.text, func(name string) *count.Rule {
			if name == count.Other {
				return c.metrics.Rule(count.NewKey(d.Name, name))
			}
			return c.metrics.Rule(c.key(d, overrideLevels(entries)))
		})
	case t.Rule.DynamicMetric():
		p.text, _ = t.match.AppendMetricKey(p.text[:0], d, entries)
		return t.rule.dynamic.Get(p.text, func(name string) *count.Rule {
			if name == count.Other {
				return c.metrics.Rule(c.key(d, t.match.MetricLevels(nameless(entries))))
			}
			return c.metrics.Rule(c.key(d, t.match.MetricLevels(entries)))
		})
	}
	n := t.rule.fixed.Load()
	if n == nil {
		n = c.metrics.Rule(c.key(d, t.match.MetricLevels(entries)))
		t.rule.fixed.Store(n)
	}
	return n
}

// key returns the metric key of levels below d. It may modify levels.
func (c *counts) key(d *descriptors.Domain, levels []string) count.Key {
	for i := range levels {
		if c.config.SanitizeDots {
			levels[i] = count.Underscores(levels[i], ".")
		}
	}
	return count.NewKey(d.Name, levels...)
}

// overrideLevels returns the metric levels of an override: the entries with their values.
func overrideLevels(entries []descriptors.Entry) []string {
	levels := make([]string, len(entries))
	for i, e := range entries {
		levels[i] = string(e.Key)
		if len(e.Value) > 0 {
			levels[i] += "_" + string(e.Value)
		}
	}
	return levels
}

// nameless returns a copy of entries with every value replaced by [count.Other].
func nameless(entries []descriptors.Entry) []descriptors.Entry {
	entries = slices.Clone(entries)
	for i := range entries {
		entries[i].Value = []byte(count.Other)
	}
	return entries
}
