// Package count has the counters of decisions. Code that counts holds a pointer to a [Counter] and adds to it; sinks read it
// whenever they like, so counting never waits for reporting. [Bounded] keeps the counters of names that requests choose.
//
// This package is part of the core.
package count

import "sync/atomic"

// most is the maximum of a [Counter], and mostAdded that of one Add: far enough below 2^64 that no number of concurrent
// additions wraps around.
const (
	most      = 1 << 63
	mostAdded = 1 << 53
)

// Counter counts hits or events. It only grows, by at most 2^53 at a time, and stops at 2^63. The zero value is ready
// to use.
type Counter struct{ n atomic.Uint64 }

// Add adds n.
func (c *Counter) Add(n uint64) {
	if c.n.Add(min(n, mostAdded)) > most {
		c.n.Store(most)
	}
}

// Load returns the sum so far.
func (c *Counter) Load() uint64 { return min(c.n.Load(), most) }

// Rule holds the counters of one metric key, in hits unless they say otherwise.
type Rule struct {
	Key                     Key
	TotalHits               Counter // asked for, whatever the outcome
	OverLimit               Counter // beyond the limit
	NearLimit               Counter // beyond NEAR_LIMIT_RATIO of the limit, and within it
	WithinLimit             Counter // of requests that passed
	OverLimitWithLocalCache Counter // rejected without asking the store; counted in OverLimit too
	ShadowMode              Counter // beyond the limit of a rule in shadow mode
	TotalNegativeHits       Counter // refunded
	UnlimitedHits           Counter // that matched an unlimited rule
	Rejections              Counter // requests that the rule rejected, whatever their hits
}
