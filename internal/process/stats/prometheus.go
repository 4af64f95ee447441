package stats

import (
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
)

// ruleValues is the number of values that ruleStats yields.
const ruleValues = 9

// ruleStats yields the counters of a rule.
func ruleStats(c *count.Rule, yield func(m Metric, value uint64)) {
	yield(TotalHits, c.TotalHits.Load())
	yield(OverLimit, c.OverLimit.Load())
	yield(NearLimit, c.NearLimit.Load())
	yield(WithinLimit, c.WithinLimit.Load())
	yield(OverLimitWithLocalCache, c.OverLimitWithLocalCache.Load())
	yield(ShadowMode, c.ShadowMode.Load())
	yield(TotalNegativeHits, c.TotalNegativeHits.Load())
	yield(UnlimitedHits, c.UnlimitedHits.Load())
	yield(Rejections, c.Rejections.Load())
}

// PrometheusConfig says how a registry is shown to Prometheus. The zero value shows it as the reference does.
type PrometheusConfig struct {
	Labels []Label // added to each series of the registry
	Mapper *Mapper // names the series; nil is the reference's mapping
}

// Handler serves the registry, and metrics of the process and of Go's runtime, to Prometheus.
func (r *Registry) Handler(c PrometheusConfig) http.Handler {
	p := prometheus.NewRegistry()
	p.MustRegister(collector{r, c}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(p, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, // one bad series must not hide the others
	})
}

// collector reads a Registry for Prometheus. It describes nothing in advance, because many series appear with their
// first count.
type collector struct {
	r *Registry
	PrometheusConfig
}

func (collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(out chan<- prometheus.Metric) {
	s := newExposition(c.Labels)
	if c.Mapper != nil {
		c.Mapper.collect(c.r, c.Labels, s)
	} else {
		c.r.collect(s)
	}
	for metric, h := range c.r.allHistograms() {
		var m dto.Metric
		if h.h.Write(&m) == nil { // it never fails
			row := &c.r.rows[metric]
			s.histograms[s.of(row, row.Name)] = m.GetHistogram()
		}
	}
	s.send(out)
}

// collect reads the registry, and names the series as the reference does.
func (r *Registry) collect(s *exposition) {
	now := r.read()
	for _, c := range now.rules {
		s.addRule(r.rows, c)
	}
	for _, n := range now.counters {
		if !shown(n) {
			continue
		}
		s.counts[s.of(n.row, n.shownAs(), n.labels...)] += float64(n.value)
	}
	for _, g := range now.gauges {
		s.gauges[s.of(g.row, g.shownAs(), g.labels...)] += g.value
	}
	requests, times := &r.rows[TotalRequests], &r.rows[ResponseTime]
	for method, calls := range *r.calls.Load() {
		l := Label{"grpc_method", method}
		s.counts[s.of(requests, requests.Name, l)] += float64(calls.count())
		s.histograms[s.of(times, times.Name, l)] = calls.histogram()
	}
}

// serviceStatsd begins the names of the reference's counters of calls and of loads.
const serviceStatsd = "ratelimit.service."

// shown reports whether Prometheus sees a counter: those of the reference's service once they have counted something, as
// there, and all others from the start.
func shown(s *series[uint64]) bool { return s.value > 0 || !strings.HasPrefix(s.name, serviceStatsd) }

// identity is the name and the labels of a metric in a comparable form: labels are name, NUL, value, NUL and so on.
type identity struct{ name, joined string }

func identify(name string, labels ...Label) identity {
	var b strings.Builder
	for _, l := range labels {
		if l.Value == "" { // the same as no label
			continue
		}
		b.WriteString(metricName(l.Name))
		b.WriteByte(0)
		b.WriteString(OneLine(strings.ToValidUTF8(l.Value, "\uFFFD")))
		b.WriteByte(0)
	}
	return identity{name, b.String()}
}

// exposition is what one scrape by Prometheus gets. It adds up what Prometheus cannot distinguish: keys that differ
// only in deeper levels, and names that differ only in characters that Prometheus does not allow.
type exposition struct {
	labels     []Label // added to each series
	counts     map[identity]float64
	gauges     map[identity]float64
	histograms map[identity]*dto.Histogram
	summaries  map[identity]*dto.Summary
	help       map[string]string // by metric name
}

func newExposition(labels []Label) *exposition {
	return &exposition{
		labels:     labels,
		counts:     make(map[identity]float64),
		gauges:     make(map[identity]float64),
		histograms: make(map[identity]*dto.Histogram),
		summaries:  make(map[identity]*dto.Summary),
		help:       make(map[string]string),
	}
}

// of identifies a metric that is shown under a name, and notes its help.
func (s *exposition) of(r *Row, name string, labels ...Label) identity {
	s.help[name] = r.Help
	return identify(name, labels...)
}

// addRule adds the counters of a rule. Those that are 0 are not shown, because there are many.
func (s *exposition) addRule(rows *[metricCount]Row, c *count.Rule) {
	labels := []Label{{"domain", c.Key.Domain}, {"key1", c.Key.Key1}, {"key2", c.Key.Key2}}
	ruleStats(c, func(m Metric, value uint64) {
		if value > 0 {
			s.counts[s.of(&rows[m], rows[m].Name, labels...)] += float64(value)
		}
	})
}

func (s *exposition) send(out chan<- prometheus.Metric) {
	for k, v := range s.counts {
		out <- s.metric(k, &dto.Metric{Counter: &dto.Counter{Value: new(v)}})
	}
	for k, v := range s.gauges {
		out <- s.metric(k, &dto.Metric{Gauge: &dto.Gauge{Value: new(v)}})
	}
	for k, h := range s.histograms {
		out <- s.metric(k, &dto.Metric{Histogram: h})
	}
	for k, v := range s.summaries {
		out <- s.metric(k, &dto.Metric{Summary: v})
	}
}

// metric adds the labels to a value.
func (s *exposition) metric(k identity, value *dto.Metric) *scraped {
	var pairs []*dto.LabelPair
	parts := strings.Split(k.joined, "\x00")
	for i := 0; i+1 < len(parts); i += 2 {
		pairs = append(pairs, &dto.LabelPair{Name: new(parts[i]), Value: new(parts[i+1])})
	}
	value.Label = withLabels(pairs, s.labels)
	return &scraped{prometheus.NewDesc(k.name, s.help[k.name], nil, nil), value}
}

// withLabels adds labels to those of a series. If the series has a label of that name, or the name has a meaning for
// Prometheus, the added one is prefixed with exported_, as Prometheus does with conflicting names.
func withLabels(pairs []*dto.LabelPair, labels []Label) []*dto.LabelPair {
	taken := func(name string) bool {
		return name == "le" || name == "quantile" || strings.HasPrefix(name, "__") ||
			slices.ContainsFunc(pairs, func(p *dto.LabelPair) bool { return p.GetName() == name })
	}
	for _, l := range labels {
		if l.Name == "" || l.Value == "" {
			continue
		}
		name := metricName(l.Name)
		for taken(name) {
			name = "exported_" + name
		}
		pairs = append(pairs, &dto.LabelPair{Name: &name, Value: new(OneLine(strings.ToValidUTF8(l.Value, "\uFFFD")))})
	}
	slices.SortFunc(pairs, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
	return pairs
}

// scraped is a value that was read.
type scraped struct {
	desc  *prometheus.Desc
	value *dto.Metric
}

func (m *scraped) Desc() *prometheus.Desc { return m.desc }

func (m *scraped) Write(out *dto.Metric) error {
	out.Label, out.Counter, out.Gauge = m.value.Label, m.value.Counter, m.value.Gauge
	out.Histogram, out.Summary = m.value.Histogram, m.value.Summary
	return nil
}
