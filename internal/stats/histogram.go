package stats

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"
)

// Histogram tells how values are spread over buckets. It is for what happens less often than requests.
type Histogram struct{ h prometheus.Histogram }

// Observe counts a value.
func (h *Histogram) Observe(v float64) { h.h.Observe(v) }

// Histogram registers a histogram of a name in statsd form, whose buckets end at bounds; the same name gives the same one.
func (r *Registry) Histogram(name string, bounds ...float64) *Histogram {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known, ok := r.histograms[name]; ok {
		return known
	}
	h := &Histogram{prometheus.NewHistogram(prometheus.HistogramOpts{Name: "any", Buckets: bounds})} // it is named when it is read
	r.histograms[name] = h
	return h
}

// allHistograms are the histograms by name.
func (r *Registry) allHistograms() map[string]*Histogram {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return maps.Clone(r.histograms)
}
