package stats

import (
	"maps"
	"math"
	"math/rand/v2"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// The native buckets of the response times: the reference's factor of 1.1 is schema 3 of Prometheus, with eight buckets
// for each doubling. From 2^-20 s (a microsecond) to 2^9 s there are 233, fewer than the 256 that the reference allows.
const (
	schema     = 3
	perDouble  = 1 << schema
	fines      = 29*perDouble + 1 // native buckets
	stripes    = 8                // so that concurrent calls rarely add to the same cache line
	maxMethods = 100              // gRPC methods with counts of their own; any beyond that are counted as Other
)

// scale is what response times are counted in.
type scale struct {
	perSecond    float64 // how many make a second
	milliseconds float64 // that one is
	firstFine    int     // index of the first native bucket, which ends at a microsecond
}

func inSeconds() scale { return scale{1, 1000, -20 * perDouble} }

func inMilliseconds() scale { return scale{1000, 1, -10 * perDouble} }

// calls counts the calls of one gRPC method and the time that they took.
//
// Both kinds of buckets are counted at once. As times grow, the index of the native bucket and that of the classic
// bucket never decrease, so their sum determines both. That sum is the index of the cell in which a call is counted.
type calls struct {
	scale  scale
	edges  [perDouble]uint64 // mantissas of 2^(0/8), 2^(1/8) and so on, at which native buckets end within a doubling
	stripe [stripes]stripe
}

// cells is the number of different sums of the two indices. The last classic bucket has no upper bound.
const cells = fines + classic

// classic is the number of classic buckets with an upper bound, those of prometheus.DefBuckets.
const classic = 11

// stripe is a part of the counts; what was observed is the sum of all stripes.
type stripe struct {
	cell  [cells]atomic.Uint64
	nanos atomic.Uint64
	_     [64]byte
}

func newCalls(s scale) *calls {
	c := &calls{scale: s}
	c.setEdges()
	return c
}

func (c *calls) setEdges() {
	for i := range c.edges {
		c.edges[i] = mantissa(math.Exp2(float64(i) / perDouble))
	}
}

// mantissa returns the binary digits of v after the point.
func mantissa(v float64) uint64 { return math.Float64bits(v) & (1<<52 - 1) }

// ObserveCall counts one call of a gRPC method and how long it took, in seconds. Callers must pass only methods that
// the server has.
func (r *Registry) ObserveCall(method string, seconds float64) {
	c, ok := (*r.calls.Load())[method]
	if !ok {
		c = r.addMethod(method)
	}
	c.observe(seconds)
}

// ObserveJSON counts one request to /json and how long it took, in seconds. Only [Registry.Totals] tells of it: the series of
// response times are those of gRPC alone, as in envoyproxy/ratelimit.
func (r *Registry) ObserveJSON(seconds float64) { r.overHTTP.observe(seconds) }

func (c *calls) observe(seconds float64) {
	if !(seconds > 0) { // or is NaN
		seconds = 0
	}
	stripe := &c.stripe[rand.Uint32()%stripes]
	v := seconds * c.scale.perSecond
	stripe.cell[c.fine(v)+coarse(v)].Add(1)
	stripe.nanos.Add(uint64(min(seconds, 1e9) * 1e9))
}

// addMethod replaces the map of methods by a copy with one more.
func (r *Registry) addMethod(method string) *calls {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := *r.calls.Load()
	if len(known) >= maxMethods {
		method = Other
	}
	if c, ok := known[method]; ok {
		return c
	}
	more := maps.Clone(known)
	more[method] = newCalls(r.scale)
	r.calls.Store(&more)
	return more[method]
}

// fine returns the index of the native bucket of v: the i-th ends at 2^(i/8).
func (c *calls) fine(v float64) int {
	if v <= 0 {
		return 0
	}
	i := (int(math.Float64bits(v)>>52) - 1023) * perDouble
	m := mantissa(v)
	for _, edge := range c.edges {
		if m <= edge {
			break
		}
		i++
	}
	return min(max(i-c.scale.firstFine, 0), fines-1)
}

// coarse returns the index of the classic bucket of v.
func coarse(v float64) int {
	i := 0
	for i < classic && v > prometheus.DefBuckets[i] {
		i++
	}
	return i
}

// read adds up the stripes.
func (c *calls) read() (cell [cells]uint64, nanos uint64) {
	for i := range c.stripe {
		for j := range c.stripe[i].cell {
			cell[j] += c.stripe[i].cell[j].Load()
		}
		nanos += c.stripe[i].nanos.Load()
	}
	return cell, nanos
}

// count returns the number of calls.
func (c *calls) count() (n uint64) {
	cell, _ := c.read()
	for i := range cell {
		n += cell[i]
	}
	return n
}

// histogram returns c as Prometheus wants it, with classic and with native buckets.
func (c *calls) histogram() *dto.Histogram {
	cell, nanos := c.read()
	h := &dto.Histogram{
		SampleSum:     new(float64(nanos) / 1e9 * c.scale.perSecond),
		Schema:        new(int32(schema)),
		ZeroThreshold: new(float64(prometheus.DefNativeHistogramZeroThreshold)),
		ZeroCount:     new(uint64(0)),
	}
	var fine [fines]uint64
	count, next := uint64(0), 0
	for i, bound := range prometheus.DefBuckets[:classic] {
		for end := c.end(i); next < end; next++ {
			count += cell[next]
			fine[min(next-i, len(fine)-1)] += cell[next] // cells that would be beyond the last native bucket are never used
		}
		h.Bucket = append(h.Bucket, &dto.Bucket{UpperBound: new(bound), CumulativeCount: new(count)})
	}
	for ; next < cells; next++ {
		count += cell[next]
		fine[next-classic] += cell[next]
	}
	h.SampleCount = new(count)
	addSpans(h, fine[:], c.scale.firstFine)
	return h
}

// end returns the cell after those of the i-th classic bucket. Longer calls are in that cell or in a later one.
func (c *calls) end(i int) int {
	bound := prometheus.DefBuckets[i]
	return c.fine(math.Nextafter(bound, 2*bound)) + i + 1
}

// ends returns where each cell begins and ends, on the scale of c. Each of these is a bound of a native or of a classic
// bucket, so the two ends of a cell are at most 9 % apart.
func (c *calls) ends() (from, to [cells]float64) {
	i := 0
	for j := range cells {
		for i < classic && j >= c.end(i) {
			i++
		}
		fine := j - i + c.scale.firstFine
		from[j], to[j] = math.Exp2(float64(fine-1)/perDouble), math.Exp2(float64(fine)/perDouble)
		if i > 0 {
			from[j] = max(from[j], prometheus.DefBuckets[i-1])
		}
		if i < classic {
			to[j] = min(to[j], prometheus.DefBuckets[i])
		}
	}
	return from, to
}

// addSpans writes the native buckets as spans, with each count as the difference from the previous one. As in
// Prometheus' own histogram, one or two empty buckets do not end a span.
func addSpans(h *dto.Histogram, fine []uint64, first int) {
	previous, next := int64(0), 0 // next is the index that would continue the last span; the first offset counts from 0
	add := func(n int64) {
		*h.PositiveSpan[len(h.PositiveSpan)-1].Length++
		h.PositiveDelta = append(h.PositiveDelta, n-previous)
		previous = n
		next++
	}
	for i, n := range fine {
		if n == 0 {
			continue
		}
		gap := i + first - next
		if len(h.PositiveSpan) == 0 || gap > 2 {
			h.PositiveSpan = append(h.PositiveSpan, &dto.BucketSpan{Offset: new(int32(gap)), Length: new(uint32(0))})
			next += gap
		}
		for next < i+first {
			add(0)
		}
		add(int64(n))
	}
}
