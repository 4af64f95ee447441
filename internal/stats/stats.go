// Package stats is a registry of counters. Code that counts holds a pointer to an atomic and adds to it; sinks read the
// atomics whenever they like, so counting never waits for reporting.
//
// A counter is identified by the name that envoyproxy/ratelimit gives it, in statsd form; those of rules are kept by
// [Key], which remembers where the levels of the name begin, so that dots in a value never shift a label. Nothing is
// ever removed: code that makes keys from what clients send has to bound them.
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

// most is the maximum of a [Counter], and mostAdded that of one Add: far enough below 2^64 that no number of concurrent
// additions wraps around.
const (
	most      = 1 << 63
	mostAdded = 1 << 53
)

// Counter counts hits or events. It only grows, by at most 2^53 at a time, and stops at 2^63. The zero value is ready
// to use.
type Counter struct{ n atomic.Uint64 }

// Add adds n.
func (c *Counter) Add(n uint64) {
	if c.n.Add(min(n, mostAdded)) > most {
		c.n.Store(most)
	}
}

// Load returns the sum so far.
func (c *Counter) Load() uint64 { return min(c.n.Load(), most) }

// Rule holds the counters of one metric key, in hits.
type Rule struct {
	Key                     Key
	TotalHits               Counter // asked for, whatever the outcome
	OverLimit               Counter // beyond the limit
	NearLimit               Counter // beyond NEAR_LIMIT_RATIO of the limit, and within it
	WithinLimit             Counter // of requests that passed
	OverLimitWithLocalCache Counter // refused without asking the store; counted in OverLimit too
	ShadowMode              Counter // beyond the limit of a rule in shadow mode
	TotalNegativeHits       Counter // given back
	UnlimitedHits           Counter // that matched an unlimited rule
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

// series is a name in statsd form, with labels.
type series[T any] struct {
	name   string
	labels []Label
	id     string // unique
	value  T
}

// Label is a name and a value that distinguish series of the same name. Statsd calls it a tag.
type Label struct{ Name, Value string }

// New returns an empty registry, whose response times are in seconds.
func New() *Registry { return newRegistry(inSeconds()) }

// NewMilliseconds returns an empty registry that counts response times in milliseconds, as Prometheus shows them with
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

// Rule returns the counters of a key. The same key always gives the same pointer.
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

// Counter returns the counter with a name in statsd form, such as ratelimit.service.config_load_success, and labels
// given as name, value, name, value. The same arguments always give the same pointer. Prometheus sees it from then on,
// at 0, so that the first event is an increase; but those below ratelimit.service, as with envoyproxy/ratelimit, once
// they have counted something.
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

// Gauge registers a value that is read whenever a sink wants it. A second one with the same name and labels replaces
// the first.
func (r *Registry) Gauge(name string, read func() float64, labels ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := newSeries(name, labels, read)
	r.gauges[s.id] = s
}

// Values receives the values of a source. Names are in statsd form.
type Values struct {
	counters []*series[uint64]
	gauges   []*series[float64]
}

// Counter reports a sum since the start of the process. Labels are given as name, value, name, value.
func (v *Values) Counter(name string, sum uint64, labels ...string) {
	v.counters = append(v.counters, newSeries(name, labels, sum))
}

// Gauge reports a current value.
func (v *Values) Gauge(name string, value float64) {
	v.gauges = append(v.gauges, newSeries(name, nil, value))
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
	r.Gauge("ratelimitd.build_info", func() float64 { return 1 }, "goversion", runtime.Version(), "version", version)
}

// newSeries pairs up the labels, of which an odd last one gets an empty value, and sorts them by name.
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

// reading is the state of the registry at one time.
type reading struct {
	rules    []*Rule
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
