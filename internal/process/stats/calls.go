package stats

import (
	"maps"
	"math"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
)

// Native buckets of response times. The reference's growth factor of 1.1 results in Prometheus' schema 3, with eight
// buckets per doubling.
const (
	growth     = 1.1
	perDouble  = 8
	cells      = 29*perDouble + 1 // native buckets from 1 µs to 2^9 s; the first and the last also count times beyond
	maxMethods = 100              // gRPC methods with their own counts; others count as [count.Other]
)

// scale is the unit of response times.
type scale struct {
	perSecond    float64 // units per second
	milliseconds float64 // milliseconds per unit
	first        int     // index of the first native bucket, which ends at 1 µs; bucket i ends at 2^(i/8)
}

// ends returns the bounds of each cell. Adjacent bounds differ by 9 %.
func (s scale) ends() (from, to [cells]float64) {
	for i := range cells {
		from[i], to[i] = math.Exp2(float64(i+s.first-1)/perDouble), math.Exp2(float64(i+s.first)/perDouble)
	}
	return from, to
}

// cells returns the number of calls in each cell.
func (s scale) cells(h *dto.Histogram) (cell [cells]uint64) {
	cell[0] = h.GetZeroCount()
	i, n, delta := -s.first, int64(0), h.GetPositiveDelta()
	for _, span := range h.GetPositiveSpan() {
		i += int(span.GetOffset())
		for range span.GetLength() {
			n += delta[0]
			delta = delta[1:]
			cell[min(max(i, 0), cells-1)] += uint64(n)
			i++
		}
	}
	return cell
}

// since returns now minus before.
func since(now, before *[cells]uint64) (fresh [cells]uint64) {
	for i := range now {
		fresh[i] = now[i] - before[i]
	}
	return fresh
}

// newTimes returns a histogram of response times with classic and native buckets. Its row has the metric's name.
func newTimes() *Histogram {
	return &Histogram{prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "any", Buckets: prometheus.DefBuckets, NativeHistogramBucketFactor: growth,
	})}
}

// read returns the state of h.
func (h *Histogram) read() *dto.Histogram {
	var m dto.Metric
	_ = h.Write(&m) // never fails
	return m.GetHistogram()
}

// ObserveCall counts a call of a gRPC method and its duration in seconds. method must be a method of the server.
func (r *Registry) ObserveCall(method string, seconds float64) {
	times, ok := (*r.calls.Load())[method]
	if !ok {
		times = r.addMethod(method)
	}
	r.observe(times, seconds)
}

// ObserveJSON counts a request to /json and its duration in seconds, only for [Registry.Totals]. As in
// envoyproxy/ratelimit, the series of response times are only those of gRPC.
func (r *Registry) ObserveJSON(seconds float64) { r.observe(r.overHTTP, seconds) }

func (r *Registry) observe(times *Histogram, seconds float64) {
	if !(seconds > 0) { // or NaN
		seconds = 0
	}
	times.Observe(min(seconds, 1e9) * r.scale.perSecond)
}

// addMethod replaces the map of methods by a copy with one more method.
func (r *Registry) addMethod(method string) *Histogram {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := *r.calls.Load()
	if len(known) >= maxMethods {
		method = count.Other
	}
	if times, ok := known[method]; ok {
		return times
	}
	more := maps.Clone(known)
	more[method] = newTimes()
	r.calls.Store(&more)
	return more[method]
}

// Totals are sums over all calls since the start of the process, for pages that show the load.
type Totals struct {
	Calls uint64 // of a gRPC method and /json

	cells [cells]uint64 // Calls by duration
	scale scale
}

// Totals returns the sums for a gRPC method and /json.
func (r *Registry) Totals(method string) Totals {
	t := Totals{scale: r.scale}
	for _, times := range []*Histogram{r.overHTTP, (*r.calls.Load())[method]} {
		if times != nil {
			for i, n := range r.scale.cells(times.read()) {
				t.cells[i] += n
				t.Calls += n
			}
		}
	}
	return t
}

// Within returns the number of seconds within which a share of the calls between before and t ended, accurate to 9 %; 0
// without calls.
func (t *Totals) Within(before *Totals, share float64) float64 {
	fresh := since(&t.cells, &before.cells)
	_, to := t.scale.ends()
	if i := quantile(&fresh, share); i >= 0 {
		return to[i] / t.scale.perSecond
	}
	return 0
}

// quantile returns the cell of a quantile; -1 without calls.
func quantile(cell *[cells]uint64, share float64) int {
	total, passed := uint64(0), uint64(0)
	for _, n := range cell {
		total += n
	}
	rank := max(1, uint64(math.Ceil(share*float64(total))))
	for i, n := range cell {
		if passed += n; passed >= rank {
			return i
		}
	}
	return -1
}
