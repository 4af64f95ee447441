package stats

import (
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// WriteText writes the counters and gauges for people, one per line, as "name: value", sorted by their statsd names.
// Counters of rules appear with their first count.
func (r *Registry) WriteText(w io.Writer) error {
	now := r.read()
	counts := make(map[string]uint64)
	for _, c := range now.rules {
		ruleStats(c, func(m Metric, value uint64) {
			if value > 0 {
				counts[OneLine(r.rows[m].named(c.Key.Text))] += value
			}
		})
	}
	for _, s := range now.counters {
		counts[OneLine(TagName(s.name, s.tags))] += s.value
	}
	for method, calls := range *r.calls.Load() {
		counts[OneLine(r.rows[TotalRequests].named(method))] += calls.count()
	}
	lines := make(map[string]string, len(counts)+len(now.gauges))
	for name, n := range counts {
		lines[name] = strconv.FormatUint(n, 10)
	}
	for _, s := range now.gauges {
		lines[OneLine(TagName(s.name, s.tags))] = strconv.FormatFloat(s.value, 'f', -1, 64)
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		b.WriteString(name + ": " + lines[name] + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
