package limiter

import (
	"fmt"
	"slices"
	"sync"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// How many true costs a learned estimate is computed from. With 256 of them, the value at percentile 90 is one from percentile 86 to 94, at
// a confidence of 95 %.
const (
	maxCosts = 256
	minCosts = 20
)

// costs holds the last true costs of a rule, for [descriptors.Learn]. The zero value is empty.
type costs struct {
	mu     sync.Mutex
	last   []uint64 // in the order of their settlements, from next on
	sorted []uint64
	next   int // index in last of the oldest one, once there are maxCosts
}

// add adds the true cost of a settlement. A cost of 0 does not count: requests that fail cost nothing, and an outage must not lower the
// estimate of what follows. A cost above every limit could not be read, and does not count either.
func (c *costs) add(cost uint64) {
	if c == nil || cost == 0 || cost > engine.MaxLimit {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.last) < maxCosts {
		c.last = append(c.last, cost)
	} else {
		i, _ := slices.BinarySearch(c.sorted, c.last[c.next])
		c.sorted = slices.Delete(c.sorted, i, i+1)
		c.last[c.next] = cost
		c.next = (c.next + 1) % maxCosts
	}
	i, _ := slices.BinarySearch(c.sorted, cost)
	c.sorted = slices.Insert(c.sorted, i, cost)
}

// estimate returns the hits that a request reserves under r if it does not specify them, and the number of true costs that this is computed
// from; 0 if it is not.
func (c *costs) estimate(r *descriptors.Reserve) (hits uint64, from int) {
	if c == nil {
		return r.Estimate, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.sorted)
	if n < minCosts {
		return r.Estimate, 0
	}
	rank := (n*int(r.Learn.Percentile) + 99) / 100
	return min(max(c.sorted[rank-1], r.Learn.Min), r.Learn.Max), n
}

// explainEstimate describes where the hits come from that t reserves; "" if from the request or from the rules.
func (t *part) explainEstimate() string {
	if t.rule.costs == nil {
		return ""
	}
	if _, from := t.rule.costs.estimate(t.Rule.Reserve); from > 0 {
		return fmt.Sprintf(" (percentile %d of the last %d true costs, within its bounds)", t.Rule.Reserve.Learn.Percentile, from)
	}
	return fmt.Sprintf(" (fewer than %d true costs are known)", minCosts)
}
