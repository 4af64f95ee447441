package stats

import (
	"maps"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
)

// Kind is what statsd does with a value.
type Kind uint8

// The kinds of samples.
const (
	Count  Kind = iota // is added up
	Gauge              // replaces the one before
	Timing             // is one of many, from which percentiles are computed
)

// Sample is something to send to statsd.
type Sample struct {
	Kind   Kind
	Name   string  // in statsd form; it may contain what is not allowed in a line
	Labels []Label // sorted by name
	Value  float64 // of a Gauge; of a Timing, in milliseconds
	N      uint64  // of a Count, the increase since the last one; of a Timing, how many calls took about this long. Never 0
}

// Reader yields what has changed since it was last read. It is for one goroutine.
type Reader struct {
	registry *Registry
	rules    map[*count.Rule]*[ruleValues]uint64
	counters map[string]uint64 // by id
	calls    map[*calls]*[cells]uint64
	rest     []Sample // timings that were computed and not yielded yet
}

// NewReader returns a Reader to which everything counted so far is new.
func (r *Registry) NewReader() *Reader {
	return &Reader{
		registry: r,
		rules:    make(map[*count.Rule]*[ruleValues]uint64),
		counters: make(map[string]uint64),
		calls:    make(map[*calls]*[cells]uint64),
	}
}

// Read yields each counter that grew, every gauge, and the response times since the last Read. If the loop ends early,
// what was not yielded is yielded the next time, so that nothing is lost and nothing is yielded twice.
func (d *Reader) Read(yield func(Sample) bool) {
	if !d.yieldRest(yield) {
		return
	}
	now := d.registry.read()
	for _, c := range now.rules {
		if !d.readRule(c, yield) {
			return
		}
	}
	for _, s := range now.counters {
		if n := s.value - min(s.value, d.counters[s.id]); n > 0 {
			d.counters[s.id] = s.value
			if !yield(Sample{Kind: Count, Name: s.name, Labels: s.tags, N: n}) {
				return
			}
		}
	}
	for _, s := range now.gauges {
		if !yield(Sample{Kind: Gauge, Name: s.name, Labels: s.tags, Value: s.value, N: 1}) {
			return
		}
	}
	methods := *d.registry.calls.Load()
	for _, method := range slices.Sorted(maps.Keys(methods)) {
		d.readCalls(method, methods[method])
		if !d.yieldRest(yield) {
			return
		}
	}
}

func (d *Reader) yieldRest(yield func(Sample) bool) bool {
	for len(d.rest) > 0 {
		s := d.rest[0]
		d.rest = d.rest[1:]
		if !yield(s) {
			return false
		}
	}
	return true
}

func (d *Reader) readRule(c *count.Rule, yield func(Sample) bool) (more bool) {
	seen, ok := d.rules[c]
	if !ok {
		seen = new([ruleValues]uint64)
		d.rules[c] = seen
	}
	i := 0
	more = true
	ruleStats(c, func(m Metric, now uint64) {
		reported := &seen[i]
		i++
		if n := now - min(now, *reported); n > 0 && more {
			*reported = now
			more = yield(Sample{Kind: Count, Name: d.registry.rows[m].named(c.Key.Text), N: n})
		}
	})
	return more
}

// readCalls appends the calls of a method since the last Read to rest.
func (d *Reader) readCalls(method string, c *calls) {
	seen, ok := d.calls[c]
	if !ok {
		seen = new([cells]uint64)
		d.calls[c] = seen
	}
	now, _ := c.read()
	var fresh [cells]uint64
	total := uint64(0)
	for i := range now {
		fresh[i] = now[i] - seen[i]
		total += fresh[i]
	}
	if total == 0 {
		return
	}
	*seen = now
	d.rest = append(d.rest, Sample{Kind: Count, Name: d.registry.rows[TotalRequests].named(method), N: total})
	from, to := c.scale.ends()
	name := d.registry.rows[ResponseTime].named(method)
	for i, n := range spread(fresh[:], maxTimings) {
		d.rest = append(d.rest, Sample{Kind: Timing, Name: name, Value: (from[i] + to[i]) / 2 * c.scale.milliseconds, N: n})
	}
}
