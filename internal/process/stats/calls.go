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

// scale is what response times are counted in.
type scale struct {
	perSecond    float64 // how many make a second
	milliseconds float64 // that one is
	first        int     // index of the first native bucket, which ends at a microsecond: the i-th ends at 2^(i/8)
}

func inSeconds() scale { return scale{1, 1000, -20 * perDouble} }

func inMilliseconds() scale { return scale{1000, 1, -10 * perDouble} }

// ends returns where each cell begins and ends; its ends are 9 % apart.
func (s scale) ends() (from, to [cells]float64) {
	for i := range cells {
		from[i], to[i] = math.Exp2(float64(i+s.first-1)/perDouble), math.Exp2(float64(i+s.first)/perDouble)
	}
	return from, to
}

// calls counts the calls of one gRPC method and the time that they took.
type calls struct {
	scale scale
	times prometheus.Histogram
}

func newCalls(s scale) *calls {
	return &calls{s, prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "any", Buckets: prometheus.DefBuckets, NativeHistogramBucketFactor: growth, // it gets its name when it is read
	})}
}

// ObserveCall counts one call of a gRPC method and how long it took, in seconds. Callers must pass only methods that
// the server has.
func (r *Registry) ObserveCall(method string, seconds float64) {
	c, ok := (*r.calls.Load())[method]
	if !ok {
		c = r.addMethod(method)
	}
	c.observe(seconds)
}

// ObserveJSON counts one request to /json and how long it took, in seconds. Only [Registry.Totals] has it: the series of
// response times are those of gRPC alone, as in envoyproxy/ratelimit.
func (r *Registry) ObserveJSON(seconds float64) { r.overHTTP.observe(seconds) }

func (c *calls) observe(seconds float64) {
	if !(seconds > 0) { // or is NaN
		seconds = 0
	}
	c.times.Observe(min(seconds, 1e9) * c.scale.perSecond)
}

// addMethod replaces the map of methods by a copy with one more.
func (r *Registry) addMethod(method string) *calls {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := *r.calls.Load()
	if len(known) >= maxMethods {
		method = count.Other
	}
	if c, ok := known[method]; ok {
		return c
	}
	more := maps.Clone(known)
	more[method] = newCalls(r.scale)
	r.calls.Store(&more)
	return more[method]
}

// histogram returns c as Prometheus wants it, with classic and with native buckets.
func (c *calls) histogram() *dto.Histogram {
	var m dto.Metric
	_ = c.times.Write(&m) // it never fails
	return m.GetHistogram()
}

// count returns the number of calls.
func (c *calls) count() uint64 { return c.histogram().GetSampleCount() }

// read returns the number of calls in each cell, and their histogram.
func (c *calls) read() (cell [cells]uint64, h *dto.Histogram) {
	h = c.histogram()
	cell[0] = h.GetZeroCount()
	i, n, delta := -c.scale.first, int64(0), h.GetPositiveDelta()
	for _, span := range h.GetPositiveSpan() {
		i += int(span.GetOffset())
		for range span.GetLength() {
			n += delta[0]
			delta = delta[1:]
			cell[min(max(i, 0), cells-1)] += uint64(n)
			i++
		}
	}
	return cell, h
}
