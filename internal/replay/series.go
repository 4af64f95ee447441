package replay

import "github.com/ratelimitd/ratelimitd/pkg/engine"

// maxBuckets is the maximum number of time buckets of a report.
const maxBuckets = 480

const second = engine.Micros(1_000_000)

// clock divides time into buckets of equal width, which doubles when there would be too many.
type clock struct {
	start, width engine.Micros
	begun        bool
	last         int // the last bucket
}

// bucket returns the bucket of a time, which must not be before the first call's, and how often the width doubled for it.
func (c *clock) bucket(at engine.Micros) (index, doubled int) {
	if !c.begun {
		c.begun, c.width = true, second
		c.start = at - (at%second+second)%second
	}
	for (at-c.start)/c.width >= maxBuckets {
		c.width *= 2
		doubled++
	}
	c.last = int((at - c.start) / c.width)
	return c.last, doubled
}

// series counts events by bucket. It is nil before the first event.
type series []uint64

// add counts an event in bucket i.
func (s *series) add(i int) {
	if *s == nil {
		*s = make(series, maxBuckets)
	}
	(*s)[i]++
}

// double merges pairs of buckets.
func (s series) double() {
	for i := range len(s) / 2 {
		s[i] = s[2*i] + s[2*i+1]
	}
	clear(s[len(s)/2:])
}
