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

// Names of series, in the forms of Prometheus and of statsd.
const (
	rulePrefix = "ratelimit_service_rate_limit_"
	ruleStatsd = "ratelimit.service.rate_limit."

	unlimitedMetric = "ratelimitd_unlimited_hits_total"
	unlimitedStatsd = "ratelimitd.unlimited_hits."

	errorPrefix = "ratelimit.service.call.should_rate_limit."
	errorMetric = "ratelimit_service_should_rate_limit_error"

	requestsMetric = "ratelimit_service_total_requests"
	timeMetric     = "ratelimit_service_response_time_seconds"

	help = "Counted since this process started."
)

// requestsName and timeName return the reference's names for the number of calls of a gRPC method and for their times.
func requestsName(method string) string { return "ratelimit_server." + method + ".total_requests" }

func timeName(method string) string { return "ratelimit_server." + method + ".response_time" }

// ruleValues is the number of values that ruleStats yields.
const ruleValues = 8

// ruleStats yields the counters of a rule, each with the parts of its name in statsd form before and after the key.
func ruleStats(c *Rule, yield func(before, after string, value uint64)) {
	yield(ruleStatsd, ".total_hits", c.TotalHits.Load())
	yield(ruleStatsd, ".over_limit", c.OverLimit.Load())
	yield(ruleStatsd, ".near_limit", c.NearLimit.Load())
	yield(ruleStatsd, ".within_limit", c.WithinLimit.Load())
	yield(ruleStatsd, ".over_limit_with_local_cache", c.OverLimitWithLocalCache.Load())
	yield(ruleStatsd, ".shadow_mode", c.ShadowMode.Load())
	yield(ruleStatsd, ".total_negative_hits", c.TotalNegativeHits.Load())
	yield(unlimitedStatsd, "", c.UnlimitedHits.Load())
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
		ErrorHandling:       promhttp.ContinueOnError, // one bad series must not hide the others
		MaxRequestsInFlight: 8,
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
	for name, h := range c.r.allHistograms() {
		var m dto.Metric
		if h.h.Write(&m) == nil { // it never fails
			s.histograms[identify(metricName(name))] = m.GetHistogram()
		}
	}
	s.send(out)
}

// collect reads the registry, and names the series as the reference does.
func (r *Registry) collect(s *exposition) {
	now := r.read()
	for _, c := range now.rules {
		s.addRule(c)
	}
	for _, n := range now.counters {
		if !shown(n) {
			continue
		}
		name, labels := metricName(n.name), n.labels
		if kind, ok := strings.CutPrefix(n.name, errorPrefix); ok {
			name, labels = errorMetric, []Label{{"err_type", kind}}
		}
		s.count(float64(n.value), name, labels...)
	}
	for _, g := range now.gauges {
		s.gauges[identify(metricName(g.name), g.labels...)] += g.value
	}
	for method, calls := range *r.calls.Load() {
		l := Label{"grpc_method", method}
		s.count(float64(calls.count()), requestsMetric, l)
		s.histograms[identify(timeMetric, l)] = calls.histogram()
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
		b.WriteString(strings.ToValidUTF8(strings.ReplaceAll(l.Value, "\x00", "\uFFFD"), "\uFFFD"))
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
	help       map[string]string // by metric name; the others have the usual text
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

// count adds to a counter.
func (s *exposition) count(value float64, name string, labels ...Label) {
	s.counts[identify(name, labels...)] += value
}

// addRule adds the counters of a rule. Those that are 0 are not shown, because there are many.
func (s *exposition) addRule(c *Rule) {
	labels := []Label{{"domain", c.Key.Domain}, {"key1", c.Key.Key1}, {"key2", c.Key.Key2}}
	ruleStats(c, func(before, after string, value uint64) {
		if value == 0 {
			return
		}
		name := unlimitedMetric
		if before == ruleStatsd {
			name = rulePrefix + after[1:]
		}
		s.count(float64(value), name, labels...)
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
func (s *exposition) metric(k identity, value *dto.Metric) *metric {
	var pairs []*dto.LabelPair
	parts := strings.Split(k.joined, "\x00")
	for i := 0; i+1 < len(parts); i += 2 {
		pairs = append(pairs, &dto.LabelPair{Name: new(parts[i]), Value: new(parts[i+1])})
	}
	value.Label = withLabels(pairs, s.labels)
	return &metric{prometheus.NewDesc(k.name, cmp.Or(s.help[k.name], help), nil, nil), value}
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
		pairs = append(pairs, &dto.LabelPair{Name: &name, Value: new(strings.ToValidUTF8(l.Value, "\uFFFD"))})
	}
	slices.SortFunc(pairs, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
	return pairs
}

// metric is a value that was read.
type metric struct {
	desc  *prometheus.Desc
	value *dto.Metric
}

func (m *metric) Desc() *prometheus.Desc { return m.desc }

func (m *metric) Write(out *dto.Metric) error {
	out.Label, out.Counter, out.Gauge = m.value.Label, m.value.Counter, m.value.Gauge
	out.Histogram, out.Summary = m.value.Histogram, m.value.Summary
	return nil
}
