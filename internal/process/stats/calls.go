package stats

import (
	"maps"
	"math"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
)

// The native buckets of the response times: the reference's factor of 1.1 is schema 3 of Prometheus, with eight buckets
// for each doubling.
const (
	growth     = 1.1
	perDouble  = 8
	cells      = 29*perDouble + 1 // native buckets from a microsecond to 2^9 s; what is beyond is counted in the first and the last
	maxMethods = 100              // gRPC methods with counts of their own; any beyond that are counted as [count.Other]
)

// scale is the unit of response times.
type scale struct {
	perSecond    float64 // units in a second
	milliseconds float64 // in a unit
	first        int     // index of the first native bucket, which ends at a microsecond: the i-th ends at 2^(i/8)
}

// ends returns where each cell begins and ends; its ends are 9 % apart.
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

// since returns now without before.
func since(now, before *[cells]uint64) (fresh [cells]uint64) {
	for i := range now {
		fresh[i] = now[i] - before[i]
	}
	return fresh
}

// newTimes returns a histogram of response times, with classic and with native buckets. Prometheus sees the name in its row.
func newTimes() *Histogram {
	return &Histogram{prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "any", Buckets: prometheus.DefBuckets, NativeHistogramBucketFactor: growth,
	})}
}

// read returns h as Prometheus wants it.
func (h *Histogram) read() *dto.Histogram {
	var m dto.Metric
	_ = h.Write(&m) // it never fails
	return m.GetHistogram()
}

// ObserveCall counts one call of a gRPC method and how long it took, in seconds. Callers must pass only methods that
// the server has.
func (r *Registry) ObserveCall(method string, seconds float64) {
	times, ok := (*r.calls.Load())[method]
	if !ok {
		times = r.addMethod(method)
	}
	r.observe(times, seconds)
}

// ObserveJSON counts one request to /json and how long it took, in seconds. Only [Registry.Totals] has it: the series of
// response times are those of gRPC alone, as in envoyproxy/ratelimit.
func (r *Registry) ObserveJSON(seconds float64) { r.observe(r.overHTTP, seconds) }

func (r *Registry) observe(times *Histogram, seconds float64) {
	if !(seconds > 0) { // or is NaN
		seconds = 0
	}
	times.Observe(min(seconds, 1e9) * r.scale.perSecond)
}

// addMethod replaces the map of methods by a copy with one more.
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

// Totals are sums over all calls since the start of the process, for a page that shows the load without reading each series.
type Totals struct {
	Calls uint64 // of the named method, and of /json

	cells [cells]uint64 // the same, by how long they took
	scale scale
}

// Totals returns the sums, of the calls of one gRPC method and of /json.
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

// Within returns how many seconds a share of the calls between before and t took at most, up to 9 % more or less; 0 if there
// were none.
func (t *Totals) Within(before *Totals, share float64) float64 {
	fresh := since(&t.cells, &before.cells)
	_, to := t.scale.ends()
	if i := quantile(&fresh, share); i >= 0 {
		return to[i] / t.scale.perSecond
	}
	return 0
}

// quantile returns the cell that ends a share of the calls; -1 if there are none.
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
