package observe

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
)

const (
	wanted   = 1000    // descriptors a second that are counted without sampling
	maxEvery = 1 << 16 // maximum sampling interval in hits
)

// pace measures the rate of sampled descriptors.
type pace struct {
	since time.Time
	drawn int
}

// passes reports whether no hit of a request is drawn. Most requests cost only this call. Each hit is drawn with the same
// probability, so requests with many hits are drawn more often. If passes returns false, [Observer.draw] decides.
func passes(s *limiter.Sample) bool {
	if s.Hits >= s.Skip {
		return false
	}
	s.Skip -= s.Hits
	return true
}

// sample counts the decisions on a request for which passes returned false.
func (o *Observer) sample(s *limiter.Sample, decisions []limiter.Decision) {
	weight, every := o.draw(s, len(decisions))
	for i := range decisions {
		d := &decisions[i]
		if weight == 0 || d.Refund {
			continue
		}
		n := sums{float64(limiter.Counted(d.Hits)) * weight}
		switch {
		case !d.Over || !d.Outcome.Rejects():
		case d.Outcome == limiter.Blocked:
			n[blocked] = weight
		default:
			n[Rejected] = weight
		}
		o.add(d, n, every)
	}
}

// draw decides whether to sample a request with wide descriptors for which passes returned false. Each of its hits counts as
// weight hits, drawn as one in every. A weight of 0 means not sampled.
func (o *Observer) draw(s *limiter.Sample, wide int) (weight float64, every uint32) {
	if s.Every == 0 {
		if next(s, o.every.Load()); passes(s) {
			return 0, 0
		}
	}
	every, weight = s.Every, 1
	if every > 1 {
		weight = -1 / math.Expm1(float64(s.Hits)*math.Log1p(-1/float64(every)))
	}
	next(s, o.paced(wide))
	return weight, every
}

// next draws the distance to the next hit to sample, in hits.
func next(s *limiter.Sample, every uint32) {
	s.Skip, s.Every = 1, every
	if every > 1 {
		s.Skip += uint64(math.Log1p(-rand.Float64()) / math.Log1p(-1/float64(every)))
	}
}

// paced records n sampled descriptors, and returns the sampling interval from now on, in hits.
func (o *Observer) paced(n int) uint32 {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pace.drawn += n
	every := float64(o.every.Load())
	switch since := now.Sub(o.pace.since); {
	case since >= time.Second:
		every = math.Ceil(every * float64(o.pace.drawn) / since.Seconds() / wanted)
	case o.pace.drawn > 2*wanted:
		every *= 2
	default:
		return uint32(every)
	}
	o.pace = pace{since: now}
	every = min(max(every, 1), maxEvery)
	o.every.Store(uint32(every))
	return uint32(every)
}
