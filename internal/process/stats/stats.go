// Package stats is a registry of counters. Code that counts holds a pointer to an atomic and adds to it; sinks read the
// atomics whenever they like, so counting never waits for reporting.
//
// What there is to count is in one table, table.go: a counter is identified by its [Metric] and the values of its labels.
// Names are envoyproxy/ratelimit's, in statsd form, where it has the metric. Counters of rules are kept by [Key], which
// remembers where the levels of the name begin, so that dots in a value never shift a label. Nothing is ever removed: code
// that makes keys from what clients send has to bound them.
//
// This package is part of the process.
package stats

import (
	"cmp"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
)

// Registry owns the counters of a process. All of its methods are safe for concurrent use.
type Registry struct {
	scale      scale // of the response times
	rows       *[metricCount]Row
	mu         sync.RWMutex
	rules      map[count.Key]*count.Rule
	counters   map[string]*series[*count.Counter]
	gauges     map[string]*series[func() float64]
	sources    []func(*Values)
	histograms map[Metric]*Histogram
	calls      atomic.Pointer[map[string]*calls] // by gRPC method; copied when one is added
	overHTTP   *calls                            // of /json, which are in no series
}

// Label is a name and a value that distinguish series of the same name. Statsd calls it a tag.
type Label struct{ Name, Value string }

// New returns an empty registry, whose response times are in seconds.
func New() *Registry { return newRegistry(inSeconds()) }

// NewMilliseconds returns an empty registry that counts response times in milliseconds, as Prometheus shows them with
// PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS=true.
func NewMilliseconds() *Registry { return newRegistry(inMilliseconds()) }

func newRegistry(s scale) *Registry {
	r := &Registry{
		scale:      s,
		rows:       rows(),
		rules:      make(map[count.Key]*count.Rule),
		counters:   make(map[string]*series[*count.Counter]),
		gauges:     make(map[string]*series[func() float64]),
		histograms: make(map[Metric]*Histogram),
		overHTTP:   newCalls(s),
	}
	r.calls.Store(&map[string]*calls{})
	return r
}

// Rule returns the counters of a key. The same key always gives the same pointer.
func (r *Registry) Rule(k count.Key) *count.Rule {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.rules[k]
	if !ok {
		c = &count.Rule{Key: k}
		r.rules[k] = c
	}
	return c
}

// Counter returns the counter of a metric, whose labels have the given values, in the order of its row. The same arguments
// always give the same pointer. Prometheus sees it from then on, at 0, so that the first event is an increase; but those
// below ratelimit.service, as with envoyproxy/ratelimit, once they have counted something.
func (r *Registry) Counter(m Metric, values ...string) *count.Counter {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := newSeries(&r.rows[m], values, new(count.Counter))
	if known, ok := r.counters[s.id]; ok {
		return known.value
	}
	r.counters[s.id] = s
	return s.value
}

// Gauge registers a value that is read whenever a sink wants it. A second one of the same metric and with the same values
// of its labels replaces the first.
func (r *Registry) Gauge(m Metric, read func() float64, values ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := newSeries(&r.rows[m], values, read)
	r.gauges[s.id] = s
}

// Values receives the values of a source.
type Values struct {
	rows     *[metricCount]Row
	counters []*series[uint64]
	gauges   []*series[float64]
}

// Counter reports a sum since the start of the process.
func (v *Values) Counter(m Metric, sum uint64, values ...string) {
	v.counters = append(v.counters, newSeries(&v.rows[m], values, sum))
}

// Gauge reports a current value.
func (v *Values) Gauge(m Metric, value float64, values ...string) {
	v.gauges = append(v.gauges, newSeries(&v.rows[m], values, value))
}

// Source registers a function that is called each time a sink reads. It is for values that are cheap to get together,
// or that are counted elsewhere.
func (r *Registry) Source(read func(*Values)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources = append(r.sources, read)
}

// BuildInfo registers the gauge ratelimitd_build_info, whose labels give the version.
func (r *Registry) BuildInfo(version string) {
	r.Gauge(BuildInfo, func() float64 { return 1 }, runtime.Version(), version)
}

// SortLabels sorts labels by name.
func SortLabels(all []Label) {
	slices.SortStableFunc(all, func(a, b Label) int { return cmp.Compare(a.Name, b.Name) })
}

// reading is the state of the registry at one time.
type reading struct {
	rules    []*count.Rule
	counters []*series[uint64]
	gauges   []*series[float64]
}

// read reads counters, gauges and sources. It calls functions without holding a lock.
func (r *Registry) read() reading {
	r.mu.RLock()
	now := reading{rules: slices.Collect(maps.Values(r.rules))}
	counters, gauges := slices.Collect(maps.Values(r.counters)), slices.Collect(maps.Values(r.gauges))
	sources := slices.Clone(r.sources)
	r.mu.RUnlock()
	for _, s := range counters {
		now.counters = append(now.counters, reread(s, s.value.Load()))
	}
	for _, s := range gauges {
		now.gauges = append(now.gauges, reread(s, s.value()))
	}
	v := Values{rows: r.rows}
	for _, read := range sources {
		read(&v)
	}
	now.counters = append(now.counters, v.counters...)
	now.gauges = append(now.gauges, v.gauges...)
	return now
}
