package stats

// maxTimings is the maximum number of response times of one method between two flushes. It suffices for the 99.9th
// percentile at any load.
const maxTimings = 1000

// Reader yields changes since its last Read. It must be used by one goroutine.
type Reader struct {
	registry *Registry
	sums     map[any]uint64         // sums of counters by ID, as of the last Read
	calls    map[any]*[cells]uint64 // cells of methods by ID
	rest     []Sample               // computed, but not yielded yet
}

// NewReader returns a Reader whose first Read yields everything counted so far.
func (r *Registry) NewReader() *Reader {
	return &Reader{registry: r, sums: make(map[any]uint64), calls: make(map[any]*[cells]uint64)}
}

// Read yields each counter that grew, every gauge, and the response times since the last Read. If the loop ends early,
// the next Read yields the rest, so each change is yielded exactly once.
func (d *Reader) Read(yield func(Sample) bool) {
	if !d.yieldRest(yield) {
		return
	}
	for s := range d.registry.samples {
		switch {
		case s.row.Statsd == "": // only for Prometheus
		case s.Kind() == Count:
			if n := s.N - min(s.N, d.sums[s.id]); n > 0 {
				d.sums[s.id], s.N = s.N, n
				d.rest = append(d.rest, s)
			}
		case s.Kind() == Gauge:
			d.rest = append(d.rest, s)
		default:
			d.addTimings(&s)
		}
		if !d.yieldRest(yield) {
			return
		}
	}
}

func (d *Reader) yieldRest(yield func(Sample) bool) bool {
	for i, s := range d.rest {
		if !yield(s) {
			d.rest = d.rest[i+1:]
			return false
		}
	}
	d.rest = d.rest[:0]
	return true
}

// addTimings adds the calls of a method since the last Read to rest.
func (d *Reader) addTimings(s *Sample) {
	if d.calls[s.id] == nil {
		d.calls[s.id] = new([cells]uint64)
	}
	scale, seen := d.registry.scale, d.calls[s.id]
	now := scale.cells(s.histogram)
	fresh := since(&now, seen)
	*seen = now
	from, to := scale.ends()
	for i, n := range spread(fresh[:], maxTimings) {
		t := *s
		t.Value, t.N = (from[i]+to[i])/2*scale.milliseconds, n
		d.rest = append(d.rest, t)
	}
}

// spread selects at most most of the calls in cells, which are ordered by duration, and yields the cell of each with
// the number of calls that it represents. The selected calls are evenly spaced, and all but two represent the same
// number of calls. So the total is exact, and percentiles are correct even in servers that ignore the number of
// represented calls when they sort samples. The longest call is always selected, and represents only itself.
func spread(cell []uint64, most uint64) func(yield func(i int, n uint64) bool) {
	return func(yield func(i int, n uint64) bool) {
		total, last := uint64(0), 0
		for i, n := range cell {
			total += n
			if n > 0 {
				last = i
			}
		}
		if total == 0 {
			return
		}
		total-- // the longest is yielded last
		each := max(1, (total+most-2)/(most-1))
		i, passed := 0, uint64(0) // number of calls in the cells before i
		for done := uint64(0); done < total; {
			n := min(each, total-done)
			for passed+cell[i] <= done+n/2 {
				passed += cell[i]
				i++
			}
			if !yield(i, n) {
				return
			}
			done += n
		}
		yield(last, 1)
	}
}
