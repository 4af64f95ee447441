package stats

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"
)

// Histogram counts values in buckets. It is for events that are rarer than requests.
type Histogram struct{ h prometheus.Histogram }

// Observe counts a value.
func (h *Histogram) Observe(v float64) { h.h.Observe(v) }

// Histogram returns the histogram with a name in statsd form, whose buckets end at bounds. The same name always gives
// the same histogram.
func (r *Registry) Histogram(name string, bounds ...float64) *Histogram {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known, ok := r.histograms[name]; ok {
		return known
	}
	h := &Histogram{prometheus.NewHistogram(prometheus.HistogramOpts{Name: "any", Buckets: bounds})} // it gets its name when it is read
	r.histograms[name] = h
	return h
}

// allHistograms returns the histograms by name.
func (r *Registry) allHistograms() map[string]*Histogram {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return maps.Clone(r.histograms)
}
