package xds

import (
	"cmp"
	"math"
	"math/rand/v2"
	"time"
)

const (
	minWait = 10 * time.Millisecond
	growth  = 2

	withoutRules = 10 * time.Second // maximum bound without any rules
)

// Backoff determines the wait before the next connection to the control plane. A wait is uniformly random between zero
// and a bound, so that servers of a fleet do not reconnect simultaneously. The first bound is small, because a control
// plane that worked is usually just restarting. Then bounds grow from Initial to Max.
type Backoff struct {
	First    time.Duration // bound of the first wait, also after a working stream; 0 means 3 s
	Initial  time.Duration // bound of the second wait; 0 means 10 s
	Max      time.Duration // maximum bound; 0 means 60 s
	Factor   float64       // growth of the bound; values up to 1 mean 2
	NoJitter bool          // wait exactly as long as the bound
}

// wait returns the wait after the given number of consecutive failed attempts, excluding the current one. Without rules, it is at most
// 10 s.
func (b Backoff) wait(failed int, rules bool) time.Duration {
	bound := max(b.bound(failed), minWait)
	if !rules {
		bound = min(bound, withoutRules)
	}
	if b.NoJitter {
		return bound
	}
	return max(rand.N(bound), minWait) //nolint:gosec // a wait is no secret
}

func (b Backoff) bound(failed int) time.Duration {
	first := cmp.Or(b.First, 3*time.Second)
	initial := cmp.Or(b.Initial, 10*time.Second)
	longest := cmp.Or(b.Max, time.Minute)
	if !(b.Factor > 1) { // including NaN
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
