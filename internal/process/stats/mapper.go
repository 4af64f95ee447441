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

// Mapper names series for Prometheus by a mapping file of statsd_exporter, instead of the built-in mapping. It matches
// mappings against names in statsd form: first with labels and extra labels as tags, as the reference writes them, then
// without. A series without a mapping keeps its statsd name, with an underscore for each character that Prometheus does
// not allow.
//
// Because it reads sums instead of events, it differs from statsd_exporter in two ways: histograms with other bounds
// and summaries are accurate to about 9 %, and a series that was hidden by its ttl returns with its previous sum
// instead of 0.
type Mapper struct {
	mapper mapper.MetricMapper

	mu      sync.Mutex
	known   map[string]*mapped // by kind and name; as many as there are series
	changed map[string]change  // by name and labels, for series with a ttl
	windows map[any]*window    // by sample ID
}

// mapped is a mapping applied to a series.
type mapped struct {
	mapper.MetricMapping

	name   string // in Prometheus
	labels []Label
}

// change is the last change of a series.
type change struct {
	value float64
	at    time.Time
}

// maxMappings is the maximum size of a mapping file in bytes.
const maxMappings = 10 << 20

// LoadMapper reads a mapping file, including old ones with timer_type and the like. Errors name the file. The error is
// fs.ErrNotExist if there is no file.
func LoadMapper(file string) (*Mapper, error) {
	m := &Mapper{known: make(map[string]*mapped), changed: make(map[string]change), windows: make(map[any]*window)}
	m.mapper.Logger = slog.New(slog.DiscardHandler) // it would only log that timer_type is deprecated
	text, err := smallfile.Read(file, maxMappings)
	if err == nil {
		err = m.mapper.InitFromYAMLString(string(text))
	}
	if err != nil {
		return nil, fmt.Errorf("reading the mapping file %s: %w", file, err)
	}
	return m, nil
}

// add adds s to e under its mapped name.
func (m *Mapper) add(e *exposition, s *Sample, unit scale) {
	kind := mapper.MetricType(s.Kind())
	if s.Kind() == Timing {
		kind = mapper.MetricTypeObserver
	}
	full := s.TagName(e.labels)
	d := m.known[string(kind)+full]
	if d == nil {
		d = m.look(kind, full, s.TagName(nil), s.Name())
		m.known[string(kind)+full] = d
	}
	factor := 1.0
	if d.Scale.Set {
		factor = d.Scale.Val
	}
	if d.Action == mapper.ActionTypeDrop || kind == mapper.MetricTypeCounter && factor < 0 {
		return
	}
	value := s.metric(factor)
	if s.Kind() == Timing {
		factor *= unit.milliseconds // mappings use milliseconds, like statsd
		if cmp.Or(d.ObserverType, m.mapper.Defaults.ObserverType) == mapper.ObserverTypeHistogram {
			bounds := m.mapper.Defaults.HistogramOptions.Buckets
			if o := d.HistogramOptions; o != nil && len(o.Buckets) > 0 {
				bounds = o.Buckets
			}
			value.Histogram = unit.histogram(s.histogram, bounds, factor)
		} else {
			value.Histogram, value.Summary = nil, m.summary(s, d, unit, factor)
		}
	}
	e.add(s, d.name, d.with(s.Tags()), value, d)
}

// look returns the mapping of the first name that has one.
func (m *Mapper) look(kind mapper.MetricType, names ...string) *mapped {
	for _, name := range names {
		if mapping, labels, ok := m.mapper.GetMapping(name, kind); ok {
			d := &mapped{MetricMapping: *mapping, name: metricName(mapping.Name)}
			for _, l := range slices.Sorted(maps.Keys(labels)) {
				d.labels = append(d.labels, Label{l, labels[l]})
			}
			return d
		}
	}
	return &mapped{MetricMapping: mapper.MetricMapping{Ttl: m.mapper.Defaults.Ttl}, name: metricName(names[len(names)-1])}
}

// with returns the mapping's labels and the series' own.
func (d *mapped) with(own []Label) []Label {
	all := slices.Clone(d.labels)
	for _, l := range own {
		i := slices.IndexFunc(all, func(o Label) bool { return metricName(o.Name) == metricName(l.Name) })
		switch {
		case i < 0:
			all = append(all, l)
		case d.HonorLabels:
			all[i].Value = l.Value
		}
	}
	return all
}

// alive reports whether a series changed within its ttl. Gauges are always alive.
func (m *Mapper) alive(id string, s *scraped) bool {
	if s.mapped.Ttl <= 0 || s.kind == Gauge {
		return true
	}
	v := s.value.GetCounter().GetValue() + float64(s.value.GetHistogram().GetSampleCount()+s.value.GetSummary().GetSampleCount())
	now := time.Now()
	last, ok := m.changed[id]
	if !ok || last.value != v {
		last = change{v, now}
		m.changed[id] = last
	}
	return now.Sub(last.at) < s.mapped.Ttl
}

// histogram converts h to a histogram with the given bounds, of values multiplied by factor. It is exact at bounds of h's
// classic buckets. Otherwise each cell counts in the first bucket that contains it completely.
func (s scale) histogram(h *dto.Histogram, bounds []float64, factor float64) *dto.Histogram {
	const rounding = 1 + 1e-9 // error of multiplying back and forth
	cell, count := s.cells(h), uint64(0)
	_, to := s.ends()
	made := &dto.Histogram{SampleSum: new(h.GetSampleSum() * factor), SampleCount: h.SampleCount}
	for _, bound := range slices.Sorted(slices.Values(bounds)) {
		passed := uint64(0)
		for i := 0; i < cells && to[i]*factor <= bound*rounding; i++ {
			passed += cell[i]
		}
		count = max(count, passed)
		for _, b := range h.GetBucket() {
			if b.GetUpperBound()*factor <= bound*rounding {
				count = max(count, b.GetCumulativeCount())
			}
		}
		if !math.IsInf(bound, 1) {
			made.Bucket = append(made.Bucket, &dto.Bucket{UpperBound: new(bound), CumulativeCount: new(count)})
		}
	}
	return made
}

// window keeps earlier counts, for quantiles of a recent period.
type window struct {
	at   []time.Time // times of the counts; the first is before the window
	cell [][cells]uint64
}

// summary returns the quantiles of recent calls, of the values of s multiplied by factor.
func (m *Mapper) summary(s *Sample, d *mapped, unit scale, factor float64) *dto.Summary {
	o := m.mapper.Defaults.SummaryOptions
	if d.SummaryOptions != nil {
		o = *d.SummaryOptions
	}
	age := cmp.Or(o.MaxAge, prometheus.DefMaxAge)
	step := age / time.Duration(cmp.Or(o.AgeBuckets, prometheus.DefAgeBuckets))
	now, cell, w := time.Now(), unit.cells(s.histogram), m.windows[s.id]
	if w == nil {
		w = &window{[]time.Time{now.Add(-age)}, make([][cells]uint64, 1)} // nothing was counted before
		m.windows[s.id] = w
	}
	if n := len(w.at); n == 1 || now.Sub(w.at[n-1]) >= step {
		w.at, w.cell = append(w.at, now), append(w.cell, cell)
	}
	for len(w.at) > 1 && now.Sub(w.at[1]) >= age {
		w.at, w.cell = slices.Delete(w.at, 0, 1), slices.Delete(w.cell, 0, 1)
	}
	fresh := since(&cell, &w.cell[0])
	from, to := unit.ends()
	made := &dto.Summary{SampleCount: s.histogram.SampleCount, SampleSum: new(s.histogram.GetSampleSum() * factor)}
	for _, q := range o.Quantiles {
		v := math.NaN()
		if i := quantile(&fresh, q.Quantile); i >= 0 {
			v = (from[i] + to[i]) / 2 * factor
		}
		made.Quantile = append(made.Quantile, &dto.Quantile{Quantile: new(q.Quantile), Value: &v})
	}
	return made
}
