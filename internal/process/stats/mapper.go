package stats

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/statsd_exporter/pkg/mapper"

	"github.com/ratelimitd/ratelimitd/internal/leaf/smallfile"
)

// Mapper names series for Prometheus according to a mapping file of statsd_exporter, instead of the built-in mapping.
// Mappings are matched against the names in statsd form: first with labels and extra labels in them as tags, as the
// reference writes them, then without. A series that no mapping matches keeps its statsd name, with an underscore for
// each character that Prometheus does not allow.
//
// As it reads sums rather than events, it differs from statsd_exporter in two ways: histograms with bounds of their own
// and summaries are only accurate to about 9 %, and a series that was hidden by its ttl comes back with its previous
// sum, not with 0.
type Mapper struct {
	mapper mapper.MetricMapper

	mu      sync.Mutex
	known   map[string]mapped // by kind and name; there are as many as there are series
	changed map[identity]change
	windows map[*calls]*window
}

// mapped is what a mapping makes of a series.
type mapped struct {
	mapping mapper.MetricMapping
	name    string // for Prometheus
	labels  []Label
}

// change is the last known change of a series that has a ttl.
type change struct {
	value float64
	at    time.Time
}

// maxMappings is the most bytes of a mapping file.
const maxMappings = 10 << 20

// LoadMapper reads a mapping file. Old ones, with timer_type and the like, are accepted. The error names the file, and
// is fs.ErrNotExist if it does not exist.
func LoadMapper(file string) (*Mapper, error) {
	m := &Mapper{known: make(map[string]mapped), changed: make(map[identity]change), windows: make(map[*calls]*window)}
	m.mapper.Logger = slog.New(slog.DiscardHandler) // all it would log is that timer_type is deprecated
	text, err := smallfile.Read(file, maxMappings)
	if err == nil {
		err = m.mapper.InitFromYAMLString(string(text))
	}
	if err != nil {
		return nil, fmt.Errorf("reading the mapping file %s: %w", file, err)
	}
	return m, nil
}

// collect reads the registry, and names the series according to the mappings.
func (m *Mapper) collect(r *Registry, extra []Label, e *exposition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := &tally{Mapper: m, exposition: e, extra: extra, kinds: make(map[string]mapper.MetricType), helps: make(map[string]string), now: time.Now()}
	now := r.read()
	for _, c := range now.rules {
		ruleStats(c, func(m Metric, n uint64) {
			if n > 0 {
				t.count(&r.rows[m], r.rows[m].named(c.Key.Text), nil, n)
			}
		})
	}
	for _, s := range now.counters {
		if shown(s) {
			t.count(s.row, s.name, s.tags, s.value)
		}
	}
	methods := *r.calls.Load()
	requests, times := &r.rows[TotalRequests], &r.rows[ResponseTime]
	for method, c := range methods {
		t.count(requests, requests.named(method), nil, c.count())
	}
	for _, s := range now.gauges {
		t.gauge(s)
	}
	for method, c := range methods {
		t.observe(times, times.named(method), c)
	}
	for name, text := range t.helps {
		t.help[name] = cmp.Or(t.help[name], text)
	}
}

// tally is one reading of the registry through a Mapper.
type tally struct {
	*Mapper
	*exposition
	extra []Label
	kinds map[string]mapper.MetricType // by name; a series whose name already has another kind is omitted
	helps map[string]string            // by name, for those to which no mapping gives one
	now   time.Time
}

func (t *tally) count(r *Row, name string, labels []Label, n uint64) {
	d, id, ok := t.find(mapper.MetricTypeCounter, r, name, labels)
	if v := scaled(d, float64(n)); ok && v >= 0 && t.alive(d, id, v) {
		t.counts[id] += v
	}
}

func (t *tally) gauge(s *series[float64]) {
	if d, id, ok := t.find(mapper.MetricTypeGauge, s.row, s.name, s.tags); ok {
		t.gauges[id] += scaled(d, s.value)
	}
}

func (t *tally) observe(r *Row, name string, c *calls) {
	d, id, ok := t.find(mapper.MetricTypeObserver, r, name, nil)
	if !ok || !t.alive(d, id, float64(c.count())) {
		return
	}
	factor := scaled(d, c.scale.milliseconds) // mappings expect milliseconds, as statsd does
	switch cmp.Or(d.mapping.ObserverType, t.mapper.Defaults.ObserverType) {
	case mapper.ObserverTypeHistogram:
		t.histograms[id] = c.mappedHistogram(d.buckets(&t.mapper), factor)
	case mapper.ObserverTypeSummary, mapper.ObserverTypeDefault:
		w, ok := t.windows[c]
		if !ok {
			w = new(window)
			t.windows[c] = w
		}
		t.summaries[id] = w.summary(c, d.summary(&t.mapper), factor, t.now)
	}
}

// find returns what the mappings make of a series; ok is false if it is not to be shown.
func (t *tally) find(kind mapper.MetricType, r *Row, name string, labels []Label) (d *mapped, id identity, ok bool) {
	all := slices.Concat(labels, t.extra)
	SortLabels(all)
	full := TagName(name, all)
	found, known := t.known[string(kind)+full]
	if !known {
		found = t.look(kind, full, TagName(name, labels), name)
		t.known[string(kind)+full] = found
	}
	d = &found
	if d.mapping.Action == mapper.ActionTypeDrop {
		return d, id, false
	}
	if before, taken := t.kinds[d.name]; taken && before != kind {
		return d, id, false
	}
	t.kinds[d.name] = kind
	if d.mapping.HelpText != "" && t.help[d.name] == "" {
		t.help[d.name] = d.mapping.HelpText
	}
	if known, ok := t.helps[d.name]; !ok || r.Help < known { // of several metrics always the same one
		t.helps[d.name] = r.Help
	}
	return d, identify(d.name, d.with(labels)...), true
}

// look returns the mapping of the first of the names that has one.
func (m *Mapper) look(kind mapper.MetricType, names ...string) mapped {
	for _, name := range names {
		mapping, labels, ok := m.mapper.GetMapping(name, kind)
		if !ok {
			continue
		}
		d := mapped{mapping: *mapping, name: metricName(mapping.Name)}
		for _, l := range slices.Sorted(maps.Keys(labels)) {
			d.labels = append(d.labels, Label{l, labels[l]})
		}
		return d
	}
	return mapped{mapping: mapper.MetricMapping{Ttl: m.mapper.Defaults.Ttl}, name: metricName(names[len(names)-1])}
}

// with returns the labels of a series that has labels of its own.
func (d *mapped) with(own []Label) []Label {
	all := slices.Clone(d.labels)
	for _, l := range own {
		i := slices.IndexFunc(all, func(o Label) bool { return metricName(o.Name) == metricName(l.Name) })
		switch {
		case i < 0:
			all = append(all, l)
		case d.mapping.HonorLabels:
			all[i].Value = l.Value
		}
	}
	return all
}

func scaled(d *mapped, v float64) float64 {
	if d.mapping.Scale.Set {
		return v * d.mapping.Scale.Val
	}
	return v
}

// alive reports whether the series changed within its ttl.
func (t *tally) alive(d *mapped, id identity, v float64) bool {
	if d.mapping.Ttl <= 0 {
		return true
	}
	last, ok := t.changed[id]
	if !ok || last.value != v {
		last = change{v, t.now}
		t.changed[id] = last
	}
	return t.now.Sub(last.at) < d.mapping.Ttl
}

// buckets returns the upper bounds of the histogram's buckets.
func (d *mapped) buckets(m *mapper.MetricMapper) []float64 {
	if o := d.mapping.HistogramOptions; o != nil && len(o.Buckets) > 0 {
		return o.Buckets
	}
	return m.Defaults.HistogramOptions.Buckets
}

// summary returns which quantiles are computed, and over what period.
func (d *mapped) summary(m *mapper.MetricMapper) mapper.SummaryOptions {
	o := m.Defaults.SummaryOptions
	if own := d.mapping.SummaryOptions; own != nil {
		o = *own
	}
	o.MaxAge = cmp.Or(o.MaxAge, prometheus.DefMaxAge)
	o.AgeBuckets = cmp.Or(o.AgeBuckets, prometheus.DefAgeBuckets)
	return o
}

// mappedHistogram returns a histogram with the given bounds, of c's values multiplied by factor. It is exact where the bounds are
// those of c's classic buckets. Elsewhere each cell is counted in the first bucket that contains all of it.
func (c *calls) mappedHistogram(bounds []float64, factor float64) *dto.Histogram {
	const rounding = 1 + 1e-9 // the error of multiplying back and forth
	cell, own := c.read()
	_, to := c.scale.ends()
	h := &dto.Histogram{SampleSum: new(own.GetSampleSum() * factor), SampleCount: new(own.GetSampleCount())}
	next, passed, count := 0, uint64(0), uint64(0)
	for _, bound := range slices.Sorted(slices.Values(bounds)) {
		for next < cells && to[next]*factor <= bound*rounding {
			passed += cell[next]
			next++
		}
		count = max(count, passed)
		for _, b := range own.GetBucket() {
			if b.GetUpperBound()*factor <= bound*rounding {
				count = max(count, b.GetCumulativeCount())
			}
		}
		if !math.IsInf(bound, 1) {
			h.Bucket = append(h.Bucket, &dto.Bucket{UpperBound: new(bound), CumulativeCount: new(count)})
		}
	}
	return h
}

// window keeps earlier counts, so that quantiles are those of a recent period.
type window struct {
	at   []time.Time // the times of the counts; the first one is before the window
	cell [][cells]uint64
}

// summary returns the quantiles of the calls since the beginning of the window, as c's values multiplied by factor.
func (w *window) summary(c *calls, o mapper.SummaryOptions, factor float64, now time.Time) *dto.Summary {
	cell, own := c.read()
	if n := len(w.at); n == 0 || now.Sub(w.at[n-1]) >= o.MaxAge/time.Duration(o.AgeBuckets) {
		if n == 0 {
			w.at, w.cell = append(w.at, now.Add(-o.MaxAge)), append(w.cell, [cells]uint64{}) // before that, nothing was counted
		}
		w.at, w.cell = append(w.at, now), append(w.cell, cell)
	}
	for len(w.at) > 1 && now.Sub(w.at[1]) >= o.MaxAge {
		w.at, w.cell = slices.Delete(w.at, 0, 1), slices.Delete(w.cell, 0, 1)
	}
	all, recent := uint64(0), uint64(0)
	var fresh [cells]uint64
	for i := range cell {
		fresh[i] = cell[i] - w.cell[0][i]
		all += cell[i]
		recent += fresh[i]
	}
	s := &dto.Summary{SampleCount: new(all), SampleSum: new(own.GetSampleSum() * factor)}
	from, to := c.scale.ends()
	for _, q := range o.Quantiles {
		v := math.NaN()
		rank := uint64(math.Ceil(q.Quantile * float64(recent)))
		for i, n := uint64(0), uint64(0); i < cells && recent > 0; i++ {
			if n += fresh[i]; n >= max(rank, 1) {
				v = (from[i] + to[i]) / 2 * factor
				break
			}
		}
		s.Quantile = append(s.Quantile, &dto.Quantile{Quantile: new(q.Quantile), Value: &v})
	}
	return s
}
