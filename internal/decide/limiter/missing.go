package limiter

import (
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Bounds on calls of Config.Missing, since callers may choose keys: minutes between two calls with the same keys, calls per minute, and
// distinct lists of keys.
const missingEach, missingMost, maxMissing = 60, 10, 1000

// missing records the reported lists of keys without a rule.
type missing struct {
	minutes count.Bounded[atomic.Int64] // last report in minutes since 1970, by domain and keys
	turns   atomic.Int64                // the current minute times 16, plus the number of calls in it
}

// missed reports a descriptor that matches no rule, unless rules have its keys but not its values.
func (c *counts) missed(p *Scratch, entries []descriptors.Entry) {
	p.text = append(p.text[:0], p.domain.Name...)
	for i := range entries {
		p.text = append(append(p.text, 0), entries[i].Key...)
	}
	now := time.Now().Unix() / 60
	seen := c.missing.minutes.Get(p.text[:min(len(p.text), meanKeyText)], func(string) *atomic.Int64 { return new(atomic.Int64) })
	before, turns := seen.Load(), c.missing.turns.Load()
	turn := max(turns, now<<4) + 1
	if now-before < missingEach || turn&15 > missingMost || !c.missing.turns.CompareAndSwap(turns, turn) || !seen.CompareAndSwap(before, now) {
		return
	}
	steps := p.domain.Explain(entries)
	if last := steps[len(steps)-1]; last.NoKey {
		c.config.Missing(p.domain.Name, string(entries[len(steps)-1].Key), last.Text)
	}
}
