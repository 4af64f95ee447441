package stats

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// PrometheusConfig configures the exposition for Prometheus. The zero value is the reference's.
type PrometheusConfig struct {
	Labels []Label // added to each series of the registry; sorted by name
	Mapper *Mapper // names series; nil uses the reference's names
}

// Handler serves the registry and metrics of the process and the Go runtime to Prometheus.
func (r *Registry) Handler(c PrometheusConfig) http.Handler {
	p := prometheus.NewRegistry()
	p.MustRegister(collector{r, c}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	// One bad series must not hide the others.
	return promhttp.HandlerFor(p, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// collector reads a Registry for Prometheus. It describes no metrics in advance, because many series appear with their
// first count.
type collector struct {
	r *Registry
	PrometheusConfig
}

func (collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(out chan<- prometheus.Metric) {
	e := &exposition{labels: c.Labels, families: make(map[string]*family), series: make(map[string]*scraped)}
	if c.Mapper != nil {
		c.Mapper.mu.Lock()
		defer c.Mapper.mu.Unlock()
	}
	for s := range c.r.samples {
		switch {
		case s.Kind() == Count && s.N == 0 && strings.HasPrefix(s.row.Statsd, "ratelimit.service."): // as in the reference
		case c.Mapper == nil || s.row.Statsd == "":
			e.add(&s, s.shownAs(), s.labels(), s.metric(1), nil)
		default:
			c.Mapper.add(e, &s, c.r.scale)
		}
	}
	for id, m := range e.series {
		if m.mapped == nil || c.Mapper.alive(id, m) {
			m.desc = prometheus.NewDesc(m.name, cmp.Or(m.given, m.help), nil, nil)
			out <- m
		}
	}
}

// metric returns the value of s, multiplied by scale unless it is a histogram.
func (s *Sample) metric(scale float64) *dto.Metric {
	if s.Kind() == Count {
		return &dto.Metric{Counter: &dto.Counter{Value: new(float64(s.N) * scale)}}
	}
	if s.Kind() == Gauge {
		return &dto.Metric{Gauge: &dto.Gauge{Value: new(s.Value * scale)}}
	}
	return &dto.Metric{Histogram: s.histogram}
}

// exposition is one scrape. It adds up series that are equal in Prometheus: keys that differ only in deeper levels, and names that
// differ only in characters that Prometheus does not allow.
type exposition struct {
	labels   []Label // added to each series
	families map[string]*family
	series   map[string]*scraped // by name and labels
}

// family is the common part of the series with one name.
type family struct {
	name  string
	kind  Kind
	help  string // of the metric
	given string // help from a mapping
}

// scraped is a series. It implements [prometheus.Metric].
type scraped struct {
	*family

	desc   *prometheus.Desc
	value  *dto.Metric
	mapped *mapped // nil without a Mapper
}

// add adds a value to a series. If an earlier series of the same name has another kind, it omits the value.
func (e *exposition) add(s *Sample, name string, labels []Label, value *dto.Metric, by *mapped) {
	f := e.families[name]
	if f == nil {
		f = &family{name: name, kind: s.Kind(), help: s.row.Help}
		e.families[name] = f
	}
	if f.kind != s.Kind() {
		return
	}
	f.help = min(f.help, s.row.Help) // the same one for several metrics, whatever their order
	if by != nil {
		f.given = cmp.Or(f.given, by.HelpText)
	}
	value.Label = e.pairs(labels)
	parts := []string{name}
	for _, p := range value.GetLabel() {
		parts = append(parts, p.GetName(), p.GetValue())
	}
	id := strings.Join(parts, "\x00")
	if same := e.series[id]; same != nil && f.kind == Count {
		*value.Counter.Value += same.value.GetCounter().GetValue()
	} else if same != nil && f.kind == Gauge {
		if before := same.value.GetGauge().GetValue(); s.row.largest {
			*value.Gauge.Value = max(*value.Gauge.Value, before)
		} else {
			*value.Gauge.Value += before
		}
	} // a later Timing replaces an earlier one
	e.series[id] = &scraped{family: f, value: value, mapped: by}
}

// pairs returns labels plus those added to each series. An added label whose name is taken or reserved is prefixed with
// exported_, as in Prometheus. An empty value equals a missing label.
func (e *exposition) pairs(labels []Label) (pairs []*dto.LabelPair) {
	for i, l := range slices.Concat(labels, e.labels) {
		if l.Name == "" || l.Value == "" {
			continue
		}
		name := metricName(l.Name)
		for i >= len(labels) && (name == "le" || name == "quantile" || strings.HasPrefix(name, "__") ||
			slices.ContainsFunc(pairs, func(p *dto.LabelPair) bool { return p.GetName() == name })) {
			name = "exported_" + name
		}
		pairs = append(pairs, &dto.LabelPair{Name: &name, Value: new(OneLine(valid(l.Value)))})
	}
	slices.SortFunc(pairs, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
	return pairs
}

// Desc implements [prometheus.Metric].
func (m *scraped) Desc() *prometheus.Desc { return m.desc }

// Write implements [prometheus.Metric].
func (m *scraped) Write(out *dto.Metric) error {
	out.Label, out.Counter, out.Gauge = m.value.Label, m.value.Counter, m.value.Gauge
	out.Histogram, out.Summary = m.value.Histogram, m.value.Summary
	return nil
}
