package xds

import (
	"math"
	"math/rand/v2"
	"time"
)

const (
	leastWait = 10 * time.Millisecond
	growth    = 2
)

// Backoff says how long to wait before the control plane is asked again. A wait is drawn evenly from between nothing and a
// bound, so that the servers of a fleet do not come back together. The bound is small at first, because a control plane
// that was there is mostly only restarted, and then grows from Initial to Max.
type Backoff struct {
	First    time.Duration // the bound of the first wait, and of the first one after a stream that worked; 0 is 3 s
	Initial  time.Duration // the bound of the second wait; 0 is 10 s
	Max      time.Duration // the largest bound; 0 is 60 s
	Factor   float64       // by which the bound grows; what is not above 1 stands for 2
	NoJitter bool          // wait for as long as the bound says
}

// wait is how long to wait after so many attempts in a row that failed, the present one not counted.
func (b Backoff) wait(failed int) time.Duration {
	bound := max(b.bound(failed), leastWait)
	if b.NoJitter {
		return bound
	}
	return max(rand.N(bound), leastWait) //nolint:gosec // a wait is no secret
}

func (b Backoff) bound(failed int) time.Duration {
	if b.First == 0 {
		b.First = 3 * time.Second
	}
	if b.Initial == 0 {
		b.Initial = 10 * time.Second
	}
	if b.Max == 0 {
		b.Max = time.Minute
	}
	if !(b.Factor > 1) { // NaN too
		b.Factor = growth
	}
	if failed == 0 {
		return min(b.First, b.Max)
	}
	grown := float64(b.Initial) * math.Pow(b.Factor, float64(failed-1))
	if grown >= float64(b.Max) {
		return b.Max
	}
	return time.Duration(grown)
}
