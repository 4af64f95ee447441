package xds

import (
	"cmp"
	"math"
	"math/rand/v2"
	"time"
)

const (
	leastWait = 10 * time.Millisecond
	growth    = 2

	withoutRules = 10 * time.Second // the largest bound as long as there are no rules at all
)

// Backoff says how long to wait before connecting to the control plane again. A wait is random, uniformly between zero
// and a bound, so that the servers of a fleet do not come back all at once. The bound is small at first, because a
// control plane that has worked is usually just restarting, and then grows from Initial to Max.
type Backoff struct {
	First    time.Duration // the bound of the first wait, and of the first one after a stream that worked; 0 means 3 s
	Initial  time.Duration // the bound of the second wait; 0 means 10 s
	Max      time.Duration // the largest bound; 0 means 60 s
	Factor   float64       // by which the bound grows; values not above 1 mean 2
	NoJitter bool          // always wait for as long as the bound
}

// wait returns how long to wait after the given number of failed attempts in a row, not counting the current one. Without rules, it is
// at most 10 s.
func (b Backoff) wait(failed int, rules bool) time.Duration {
	bound := max(b.bound(failed), leastWait)
	if !rules {
		bound = min(bound, withoutRules)
	}
	if b.NoJitter {
		return bound
	}
	return max(rand.N(bound), leastWait) //nolint:gosec // a wait is no secret
}

func (b Backoff) bound(failed int) time.Duration {
	first := cmp.Or(b.First, 3*time.Second)
	initial := cmp.Or(b.Initial, 10*time.Second)
	longest := cmp.Or(b.Max, time.Minute)
	if !(b.Factor > 1) { // NaN too
		b.Factor = growth
	}
	if failed == 0 {
		return min(first, longest)
	}
	grown := float64(initial) * math.Pow(b.Factor, float64(failed-1))
	if grown >= float64(longest) {
		return longest
	}
	return time.Duration(grown)
}
