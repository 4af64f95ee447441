package admission

import "time"

const (
	leastInFlight = 16 // calls; with fewer, turns would cost more than calls
	lapPart       = 8  // a round may take one part in so many of the time that callers give
	mostCut       = 2  // a long round divides the limit by this at most
	growthPart    = 16 // a short round that met the limit raises it by one part in so many, and 1
)

// limit is how many calls may be in flight. It follows the delay of a round: it rises a little after a short round that
// met it, and falls in proportion after a long one. That is additive increase and multiplicative decrease (Jacobson,
// "Congestion Avoidance and Control", 1988) with the gradient of Netflix' concurrency-limits for the decrease.
//
// The queue holds a multiple of it. So whatever arrives, the work of a round is in proportion to the limit, and a limit
// can be found for which a round is short.
type limit struct{ calls int }

// update takes note of a round that took lap, when callers wait for patience. So many calls were worked on meanwhile, and
// met says that others waited because those were as many as the limit.
func (l *limit) update(lap, patience time.Duration, worked int, met bool) {
	target := patience / lapPart
	switch {
	case lap > target:
		part := float64(max(target, lap/mostCut)) / float64(lap)
		l.calls = max(leastInFlight, int(float64(min(l.calls, worked))*part))
	case met:
		l.calls = min(mostInFlight, l.calls+1+l.calls/growthPart)
	}
}
