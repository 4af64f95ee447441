package replay

import "github.com/ratelimitd/ratelimitd/pkg/engine"

// maxBuckets is how many buckets of time a report has at most.
const maxBuckets = 480

const second = engine.Micros(1_000_000)

// clock divides the time of a play into buckets of one length, which doubles whenever there would be too many.
type clock struct {
	start, width engine.Micros
	begun        bool
	last         int // the last bucket
}

// bucket returns the bucket of a time that is not before any time given earlier, and how often the length doubled for it.
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

// series counts what happens in each bucket, for each of several sets. It is nil until something does.
type series []uint64

// add counts in bucket i.
func (s *series) add(i int) {
	if *s == nil {
		*s = make(series, maxBuckets)
	}
	(*s)[i]++
}

// double halves the number of buckets.
func (s series) double() {
	for i := range len(s) / 2 {
		s[i] = s[2*i] + s[2*i+1]
	}
	clear(s[len(s)/2:])
}
