// Package stats counts what the process does, and shows the counts to Prometheus, statsd and people.
//
// Code that counts holds a pointer to an atomic ([count.Counter]), so counting never waits for reporting. What there is to
// count is in one table, table.go, whose rows give each [Metric] its name in statsd form (envoyproxy/ratelimit's, where it
// has the metric) and its name and labels in Prometheus. Counters of rules have a [count.Key], which remembers where the levels
// of the name begin, so that dots in a value never shift a label. Series are never removed: code that derives keys from
// requests must bound them.
//
// Everything that reports walks over the same [Sample]s ([Registry.samples]), each of which knows both names:
//
//   - [Registry.Handler] serves Prometheus. It adds up series with the same name and labels, such as keys that differ only in
//     deeper levels. Counters of rules, and the reference's below ratelimit.service, appear with their first count, as there.
//   - A [Mapper] names the series by a mapping file of statsd_exporter instead.
//   - A [Reader] yields, for statsd and DogStatsD, how much each counter grew since the last time, every gauge, and at most a
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

// Registry owns the counters of a process. All of its methods are safe for concurrent use.
type Registry struct {
	scale      scale // of the response times
	rows       *[metricCount]Row
	mu         sync.RWMutex
	rules      map[count.Key]*count.Rule
	series     map[any]*series // by the ID of the sample
	sources    []func(*Values)
	histograms map[Metric]*Histogram
	calls      atomic.Pointer[map[string]*Histogram] // by gRPC method; copied when one is added
	overHTTP   *Histogram                            // of /json, which are in no series
}

// series is a counter or a gauge.
type series struct {
	Sample // all but its value

	counter count.Counter
	gauge   func() float64 // nil for a counter
}

// Histogram counts values in buckets. It is for events that are rarer than requests.
type Histogram struct{ prometheus.Histogram }

// New returns an empty registry, whose response times are in seconds.
func New() *Registry { return newRegistry(scale{1, 1000, -20 * perDouble}) }

// NewMilliseconds returns an empty registry that counts response times in milliseconds, as Prometheus shows them with
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

// Rule returns the counters of a key. The same key always gives the same pointer.
func (r *Registry) Rule(k count.Key) *count.Rule {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rules[k] == nil {
		r.rules[k] = &count.Rule{Key: k}
	}
	return r.rules[k]
}

// Counter returns the counter of a metric, whose labels have the given values, in the order of its row. The same arguments
// always give the same pointer. Prometheus sees it from then on, at 0, so that the first event is an increase; but those
// below ratelimit.service, as with envoyproxy/ratelimit, once they have counted something.
func (r *Registry) Counter(m Metric, values ...string) *count.Counter {
	return &r.add(&series{Sample: r.sample(m, values)}, false).counter
}

// Gauge registers a function that returns the current value. It replaces that of an earlier call with the same metric and labels.
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

// Histogram returns the histogram of a metric, whose buckets end at bounds. The same metric always gives the same
// histogram.
func (r *Registry) Histogram(m Metric, bounds ...float64) *Histogram {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.histograms[m] == nil { // Prometheus sees the name in its row
		r.histograms[m] = &Histogram{prometheus.NewHistogram(prometheus.HistogramOpts{Name: "any", Buckets: bounds})}
	}
	return r.histograms[m]
}

// Source registers a function that is called each time the registry is read. It is for values that are cheap to get together, or
// that are counted elsewhere.
func (r *Registry) Source(read func(*Values)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources = append(r.sources, read)
}

// Values receives the values of a source.
type Values struct {
	registry *Registry
	samples  []Sample
}

// Counter reports a sum since the start of the process.
func (v *Values) Counter(m Metric, sum uint64, values ...string) { v.add(m, values).N = sum }

// Gauge reports a current value.
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

// BuildInfo registers the gauge ratelimitd_build_info, whose labels give the version.
func (r *Registry) BuildInfo(version string) {
	r.Gauge(BuildInfo, func() float64 { return 1 }, runtime.Version(), version)
}

// samples yields the current value of each series: first the counters of rules that have counted something, then other
// counters, gauges, and histograms. It calls functions without holding a lock.
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

// ruleCounters returns the counters of a rule.
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

// sample returns a sample of m without a value. If the name in statsd form varies, the first value is in it.
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
