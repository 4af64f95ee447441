// Package count implements counters of decisions. Code that counts holds a pointer to a [Counter] and adds to it; sinks read the counter
// at any time, so counting never waits for reporting. [Bounded] holds the counters of names that requests choose.
//
// This package is part of the core.
package count

import "sync/atomic"

// most is the maximum of a [Counter], and maxAdded the maximum of one Add. They are far enough below 2^64 that concurrent additions
// cannot wrap around.
const (
	most     = 1 << 63
	maxAdded = 1 << 53
)

// Counter counts hits or events. It only increases, by at most 2^53 at a time, up to 2^63. The zero value is ready for use.
type Counter struct{ n atomic.Uint64 }

// Add adds n.
func (c *Counter) Add(n uint64) {
	if c.n.Add(min(n, maxAdded)) > most {
		c.n.Store(most)
	}
}

// Load returns the total.
func (c *Counter) Load() uint64 { return min(c.n.Load(), most) }

// Rule holds the counters of one metric key, in hits unless noted otherwise.
type Rule struct {
	Key                     Key
	TotalHits               Counter // requested, regardless of the outcome
	OverLimit               Counter // beyond the limit
	NearLimit               Counter // beyond NEAR_LIMIT_RATIO of the limit, and within it
	WithinLimit             Counter // of admitted requests
	OverLimitWithLocalCache Counter // rejected without asking the store; included in OverLimit
	ShadowMode              Counter // beyond the limit of a rule in shadow mode
	TotalNegativeHits       Counter // refunded
	UnlimitedHits           Counter // of an unlimited rule
	Rejections              Counter // requests rejected by the rule, regardless of their hits
}
