package stats

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"
)

// Histogram counts values in buckets. It is for events that are rarer than requests.
type Histogram struct{ h prometheus.Histogram }

// Observe counts a value.
func (h *Histogram) Observe(v float64) { h.h.Observe(v) }

// Histogram returns the histogram of a metric, whose buckets end at bounds. The same metric always gives the same
// histogram.
func (r *Registry) Histogram(m Metric, bounds ...float64) *Histogram {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known, ok := r.histograms[m]; ok {
		return known
	}
	h := &Histogram{prometheus.NewHistogram(prometheus.HistogramOpts{Name: "any", Buckets: bounds})} // it gets its name when it is read
	r.histograms[m] = h
	return h
}

// allHistograms returns the histograms by metric.
func (r *Registry) allHistograms() map[Metric]*Histogram {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return maps.Clone(r.histograms)
}
