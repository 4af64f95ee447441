package observe

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
)

const (
	wanted   = 1000    // descriptors in a second; if there are more, they are sampled
	maxEvery = 1 << 16 // the most hits of which one is drawn
)

// pace measures how many descriptors are sampled.
type pace struct {
	since time.Time
	drawn int
}

// passes reports whether no hit of a request is drawn, which is all that most requests cost. Each hit is drawn with the same
// probability, so that a request for many hits is not overlooked. If it reports false, [Observer.draw] decides.
func passes(s *limiter.Sample) bool {
	if s.Hits >= s.Skip {
		return false
	}
	s.Skip -= s.Hits
	return true
}

// sample counts the decisions on a request that did not pass.
func (o *Observer) sample(s *limiter.Sample, decisions []limiter.Decision) {
	weight, every := o.draw(s, len(decisions))
	for i := range decisions {
		d := &decisions[i]
		if weight == 0 || d.Back {
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

// draw decides about a request with so many descriptors that did not pass. Its hits count weight times, and are one in every; the
// request is not sampled if weight is 0.
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

// next draws how many hits come before the next one that is drawn, and that one.
func next(s *limiter.Sample, every uint32) {
	s.Skip, s.Every = 1, every
	if every > 1 {
		s.Skip += uint64(math.Log1p(-rand.Float64()) / math.Log1p(-1/float64(every)))
	}
}

// paced notes that n descriptors are sampled, and returns of how many hits one is to be drawn from now on.
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
