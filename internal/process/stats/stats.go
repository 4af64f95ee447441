// Package stats counts events of the process, and exports the counts to Prometheus, statsd, and people.
//
// Counting code holds a pointer to an atomic ([count.Counter]), so it never waits for exports. All metrics are in one table,
// table.go. A row gives a [Metric] its name in statsd form (envoyproxy/ratelimit's, if it has the metric) and its name and
// labels in Prometheus. Counters of rules have a [count.Key], which records where the levels of the name begin, so that dots in
// a value never shift labels. Series are never removed; code that derives keys from requests must bound them.
//
// All exports iterate over the same [Sample]s ([Registry.samples]), which have both names:
//
//   - [Registry.Handler] serves Prometheus. It adds up series with the same name and labels, such as keys that differ only in
//     deeper levels. As in envoyproxy/ratelimit, counters of rules and below ratelimit.service appear with their first count.
//   - A [Mapper] names series by a mapping file of statsd_exporter instead.
//   - A [Reader] yields, for statsd and DogStatsD, the increase of each counter since the last time, every gauge, and at most a
//     thousand response times for each method. Each count is yielded exactly once.
//   - [Registry.WriteText] writes counters and gauges as lines of text.
//
// This package is part of the process.
package stats

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
)

// Registry owns the counters of a process. Its methods are safe for concurrent use.
type Registry struct {
	scale      scale // of the response times
	rows       *[metricCount]Row
	mu         sync.RWMutex
	rules      map[count.Key]*count.Rule
	series     map[any]*series // by sample ID
	sources    []func(*Values)
	histograms map[Metric]*Histogram
	calls      atomic.Pointer[map[string]*Histogram] // by gRPC method; copied on write
	overHTTP   *Histogram                            // of /json, which has no series
}

// series is a counter or a gauge.
type series struct {
	Sample // without a value

	counter count.Counter
	gauge   func() float64 // nil for a counter
}

// Histogram counts values in buckets. Use it for events that are rarer than requests.
type Histogram struct{ prometheus.Histogram }

// New returns an empty registry with response times in seconds.
func New() *Registry { return newRegistry(scale{1, 1000, -20 * perDouble}) }

// NewMilliseconds returns an empty registry with response times in milliseconds, for
// PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS=true.
func NewMilliseconds() *Registry { return newRegistry(scale{1000, 1, -10 * perDouble}) }

func newRegistry(s scale) *Registry {
	r := &Registry{
		scale:      s,
		rows:       rows(),
		rules:      make(map[count.Key]*count.Rule),
		series:     make(map[any]*series),
		histograms: make(map[Metric]*Histogram),
		overHTTP:   newTimes(),
	}
	r.calls.Store(&map[string]*Histogram{})
	return r
}

// Rule returns the counters of a key. Equal keys return the same pointer.
func (r *Registry) Rule(k count.Key) *count.Rule {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rules[k] == nil {
		r.rules[k] = &count.Rule{Key: k}
	}
	return r.rules[k]
}

// Counter returns the counter of a metric with the given label values, in the order of its row. Equal arguments return the
// same pointer. Prometheus immediately shows the counter at 0, so that the first event is an increase. As in
// envoyproxy/ratelimit, counters below ratelimit.service appear only with their first count.
func (r *Registry) Counter(m Metric, values ...string) *count.Counter {
	return &r.add(&series{Sample: r.sample(m, values)}, false).counter
}

// Gauge registers a function that returns the current value. It replaces an earlier one with the same metric and labels.
func (r *Registry) Gauge(m Metric, read func() float64, values ...string) {
	r.add(&series{Sample: r.sample(m, values), gauge: read}, true)
}

func (r *Registry) add(s *series, replace bool) *series {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known, ok := r.series[s.id]; ok && !replace {
		return known
	}
	r.series[s.id] = s
	return s
}

// Histogram returns the histogram of a metric with the given upper bounds. Calls with the same metric return the same
// histogram.
func (r *Registry) Histogram(m Metric, bounds ...float64) *Histogram {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.histograms[m] == nil { // the row has the name
		r.histograms[m] = &Histogram{prometheus.NewHistogram(prometheus.HistogramOpts{Name: "any", Buckets: bounds})}
	}
	return r.histograms[m]
}

// Source registers a function that is called at each read of the registry. Use it for values that are cheap to collect together,
// or counted elsewhere.
func (r *Registry) Source(read func(*Values)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources = append(r.sources, read)
}

// Values collects the values of a source.
type Values struct {
	registry *Registry
	samples  []Sample
}

// Counter adds a sum since the start of the process.
func (v *Values) Counter(m Metric, sum uint64, values ...string) { v.add(m, values).N = sum }

// Gauge adds a current value.
func (v *Values) Gauge(m Metric, value float64, values ...string) { v.add(m, values).Value = value }

func (v *Values) histogram(m Metric, h *Histogram, values ...string) (calls uint64) {
	s := v.add(m, values)
	s.id, s.histogram = h, h.read()
	return s.histogram.GetSampleCount()
}

func (v *Values) add(m Metric, values []string) *Sample {
	v.samples = append(v.samples, v.registry.sample(m, values))
	return &v.samples[len(v.samples)-1]
}

// BuildInfo registers the gauge ratelimitd_build_info, whose labels contain the versions.
func (r *Registry) BuildInfo(version string) {
	r.Gauge(BuildInfo, func() float64 { return 1 }, runtime.Version(), version)
}

// samples yields the current value of each series: first counters of rules that are not 0, then other counters, gauges,
// and histograms. It holds no lock while it calls functions.
func (r *Registry) samples(yield func(Sample) bool) {
	r.mu.RLock()
	rules, all := slices.Collect(maps.Values(r.rules)), slices.Collect(maps.Values(r.series))
	sources, histograms := slices.Clone(r.sources), maps.Clone(r.histograms)
	r.mu.RUnlock()
	for _, c := range rules {
		values := []string{c.Key.Domain, c.Key.Key1, c.Key.Key2}
		for m, n := range ruleCounters(c) {
			sum := n.Load()
			if sum > 0 && !yield(Sample{row: &r.rows[m], part: c.Key.Text, values: values, id: n, N: sum}) {
				return
			}
		}
	}
	v := Values{registry: r}
	for _, s := range all {
		now := s.Sample
		if now.N = s.counter.Load(); s.gauge != nil {
			now.Value = s.gauge()
		}
		v.samples = append(v.samples, now)
	}
	for _, read := range sources {
		read(&v)
	}
	for method, times := range *r.calls.Load() {
		v.Counter(TotalRequests, v.histogram(ResponseTime, times, method), method)
	}
	for m, h := range histograms {
		v.histogram(m, h)
	}
	slices.SortStableFunc(v.samples, func(a, b Sample) int { return strings.Compare(string(a.Kind()), string(b.Kind())) })
	for _, s := range v.samples {
		if !yield(s) {
			return
		}
	}
}

// ruleCounters returns the counters of a rule in the order of their metrics.
func ruleCounters(c *count.Rule) [Rejections + 1]*count.Counter {
	return [...]*count.Counter{
		TotalHits:               &c.TotalHits,
		OverLimit:               &c.OverLimit,
		NearLimit:               &c.NearLimit,
		WithinLimit:             &c.WithinLimit,
		OverLimitWithLocalCache: &c.OverLimitWithLocalCache,
		ShadowMode:              &c.ShadowMode,
		TotalNegativeHits:       &c.TotalNegativeHits,
		UnlimitedHits:           &c.UnlimitedHits,
		Rejections:              &c.Rejections,
	}
}

// sample returns a sample of m without a value. If the statsd name varies, it contains the first of values.
func (r *Registry) sample(m Metric, values []string) Sample {
	s := Sample{row: &r.rows[m], values: slices.Clone(values), id: fmt.Sprintf("%d%q", m, values)}
	want := len(s.row.Labels)
	if s.row.varies() {
		want = max(want, 1)
	}
	if len(values) != want {
		panic(fmt.Sprintf("stats: %s has the labels %q, and is given the values %q", s.row.Name, s.row.Labels, values)) //nolint:forbidigo // the caller has a bug
	}
	if s.row.varies() {
		s.part = values[0]
	}
	return s
}
