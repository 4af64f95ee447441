package admission

import "time"

const (
	minInFlight = 16 // calls; with fewer, giving turns would cost more than the calls
	lapPart     = 8  // a lap may take at most 1/lapPart of the callers' patience
	maxCut      = 2  // a long lap divides the limit by at most this
	growthPart  = 16 // a short lap that met the limit raises it by 1/growthPart, plus 1
)

// limit is the maximum number of calls in flight. It follows the delay of rounds: it rises slightly after a short lap that met it, and
// falls in proportion after a long one. This is additive increase and multiplicative decrease (Jacobson, "Congestion Avoidance and
// Control", 1988) with the gradient of Netflix' concurrency-limits for the decrease.
//
// The queue holds a multiple of the limit. So regardless of the load, the work of a round is proportional to the limit, and some limit
// makes rounds short.
type limit struct{ calls int }

// update adjusts the limit after a lap, given the callers' patience. worked is the number of calls in flight during the lap; met reports
// whether other calls waited because of the limit.
func (l *limit) update(lap, patience time.Duration, worked int, met bool) {
	target := patience / lapPart
	switch {
	case lap > target:
		part := float64(max(target, lap/maxCut)) / float64(lap)
		l.calls = max(minInFlight, int(float64(min(l.calls, worked))*part))
	case met:
		l.calls = min(maxInFlight, l.calls+1+l.calls/growthPart)
	}
}
