// Package stats is a registry of counters. Who counts holds a pointer to an atomic and adds to it; sinks read the
// atomics when they want to, so that counting never waits for whoever reports.
//
// A counter is known by the name that envoyproxy/ratelimit gives it, in statsd form; those of the rules are kept by
// [Key], which remembers where the levels of the name begin, so that dots in a value never shift a label. Nothing is
// ever removed: who makes keys from what clients send bounds them first.
package stats

import (
	"cmp"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
)

// most is what a [Counter] stops at, and mostAdded what one Add adds at most: so much below 2^64 that no number of
// concurrent additions wraps.
const (
	most      = 1 << 63
	mostAdded = 1 << 53
)

// Counter counts hits or events. It only grows, by at most 2^53 at a time, and stops at 2^63. The zero value is ready.
type Counter struct{ n atomic.Uint64 }

// Add adds n.
func (c *Counter) Add(n uint64) {
	if c.n.Add(min(n, mostAdded)) > most {
		c.n.Store(most)
	}
}

// Load is the sum so far.
func (c *Counter) Load() uint64 { return min(c.n.Load(), most) }

// Rule holds the counters of one metric key, in hits.
type Rule struct {
	Key                     Key
	TotalHits               Counter // asked for, whatever became of them
	OverLimit               Counter // beyond the limit
	NearLimit               Counter // beyond NEAR_LIMIT_RATIO of the limit, and within it
	WithinLimit             Counter // of requests that passed
	OverLimitWithLocalCache Counter // refused without asking the store; counted in OverLimit too
	ShadowMode              Counter // beyond the limit of a rule in shadow mode
	TotalNegativeHits       Counter // given back
	UnlimitedHits           Counter // that met an unlimited rule
}

// Registry owns the counters of a process. All of its methods are safe for concurrent use.
type Registry struct {
	unit       unit // of the response times
	mu         sync.RWMutex
	rules      map[Key]*Rule
	counters   map[string]*series[*Counter]
	gauges     map[string]*series[func() float64]
	sources    []func(*Values)
	histograms map[string]*Histogram
	calls      atomic.Pointer[map[string]*calls] // by gRPC method; copied when one is added
}

// series is something with a name in statsd form and labels.
type series[T any] struct {
	name   string
	labels []Label
	id     string // tells it from every other
	value  T
}

// Label is a name with a value that tells series of one name apart. Statsd calls it a tag.
type Label struct{ Name, Value string }

// New makes an empty registry, whose response times are in seconds.
func New() *Registry { return newRegistry(inSeconds()) }

// NewMilliseconds makes an empty registry that counts response times in milliseconds, as Prometheus shows them with
// PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS=true.
func NewMilliseconds() *Registry { return newRegistry(inMilliseconds()) }

func newRegistry(u unit) *Registry {
	r := &Registry{
		unit:       u,
		rules:      make(map[Key]*Rule),
		counters:   make(map[string]*series[*Counter]),
		gauges:     make(map[string]*series[func() float64]),
		histograms: make(map[string]*Histogram),
	}
	r.calls.Store(&map[string]*calls{})
	return r
}

// Rule is the counters of a key; the same key gives the same pointer.
func (r *Registry) Rule(k Key) *Rule {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.rules[k]
	if !ok {
		c = &Rule{Key: k}
		r.rules[k] = c
	}
	return c
}

// Counter is the counter of a name in statsd form, such as ratelimit.service.config_load_success, with labels given as
// name, value, name, value; the same gives the same pointer. Prometheus sees it, as every series, once it counts.
func (r *Registry) Counter(name string, labels ...string) *Counter {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := newSeries(name, labels, new(Counter))
	if known, ok := r.counters[s.id]; ok {
		return known.value
	}
	r.counters[s.id] = s
	return s.value
}

// Gauge registers a value that is read when a sink wants it. A second one of the same name and labels replaces the first.
func (r *Registry) Gauge(name string, read func() float64, labels ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := newSeries(name, labels, read)
	r.gauges[s.id] = s
}

// Values takes what a source has to tell. Names are in statsd form.
type Values struct {
	counters []*series[uint64]
	gauges   []*series[float64]
}

// Counter tells a sum since the start of the process.
func (v *Values) Counter(name string, sum uint64) {
	v.counters = append(v.counters, newSeries(name, nil, sum))
}

// Gauge tells a value as it is now.
func (v *Values) Gauge(name string, value float64) {
	v.gauges = append(v.gauges, newSeries(name, nil, value))
}

// Source registers a function that is called each time a sink reads. It is for values that are cheap to have together,
// or that somebody else counts.
func (r *Registry) Source(read func(*Values)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources = append(r.sources, read)
}

// BuildInfo registers the gauge ratelimitd_build_info, whose labels tell which version runs.
func (r *Registry) BuildInfo(version string) {
	r.Gauge("ratelimitd.build_info", func() float64 { return 1 }, "goversion", runtime.Version(), "version", version)
}

// newSeries pairs the labels, an odd one of which has an empty value, and sorts them by name.
func newSeries[T any](name string, labels []string, value T) *series[T] {
	s := &series[T]{name: name, value: value}
	for pair := range slices.Chunk(labels, 2) {
		l := Label{Name: pair[0]}
		if len(pair) == 2 {
			l.Value = pair[1]
		}
		s.labels = append(s.labels, l)
	}
	SortLabels(s.labels)
	s.id = name
	for _, l := range s.labels {
		s.id += strconv.Quote(l.Name) + strconv.Quote(l.Value)
	}
	return s
}

// SortLabels sorts labels by name.
func SortLabels(all []Label) {
	slices.SortStableFunc(all, func(a, b Label) int { return cmp.Compare(a.Name, b.Name) })
}

// reading is what there is to see at one time.
type reading struct {
	rules    []*Rule
	counters []*series[uint64]
	gauges   []*series[float64]
}

// read reads counters, gauges and sources. What it calls runs without a lock.
func (r *Registry) read() reading {
	r.mu.RLock()
	now := reading{rules: slices.Collect(maps.Values(r.rules))}
	counters, gauges := slices.Collect(maps.Values(r.counters)), slices.Collect(maps.Values(r.gauges))
	sources := slices.Clone(r.sources)
	r.mu.RUnlock()
	for _, s := range counters {
		now.counters = append(now.counters, &series[uint64]{s.name, s.labels, s.id, s.value.Load()})
	}
	for _, s := range gauges {
		now.gauges = append(now.gauges, &series[float64]{s.name, s.labels, s.id, s.value()})
	}
	var v Values
	for _, read := range sources {
		read(&v)
	}
	now.counters = append(now.counters, v.counters...)
	now.gauges = append(now.gauges, v.gauges...)
	return now
}
