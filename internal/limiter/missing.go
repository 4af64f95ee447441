package limiter

import (
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/stats"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Bounds on calls of Config.Missing, since callers may choose keys.
const (
	missingEach   = 60   // minutes until it is called with the same keys again
	missingMost   = 10   // calls a minute
	maxMissing    = 1000 // lists of keys that are told apart
	maxMissingKey = 256  // bytes of a list
)

// missing knows which lists of keys without a rule have been reported.
type missing struct {
	minutes stats.Bounded[atomic.Int64] // since 1970, by domain and keys
	turns   atomic.Int64                // the present minute times 16, and the calls in it
}

// missed reports a descriptor that no rule is about, unless it is only about its values.
func (c *counts) missed(p *Scratch, entries []descriptors.Entry) {
	if c.config.Missing == nil {
		return
	}
	p.text = append(p.text[:0], p.domain.Name...)
	for i := range entries {
		p.text = append(append(p.text, 0), entries[i].Key...)
	}
	now := time.Now().Unix() / 60
	seen := c.missing.minutes.Get(p.text[:min(len(p.text), maxMissingKey)], func(string) *atomic.Int64 { return new(atomic.Int64) })
	before := seen.Load()
	if now-before < missingEach || !c.missing.turn(now) || !seen.CompareAndSwap(before, now) {
		return
	}
	keys := make([]descriptors.Entry, len(entries))
	for i := range entries {
		keys[i].Key = entries[i].Key
	}
	if at, known := p.domain.Unmet(keys); at >= 0 && at < len(keys) {
		c.config.Missing(p.domain.Name, string(keys[at].Key), known)
	}
}

// turn reports whether there may be a call in a minute.
func (m *missing) turn(minute int64) bool {
	for {
		before := m.turns.Load()
		after := max(before, minute<<4) + 1
		if after&15 > missingMost {
			return false
		}
		if m.turns.CompareAndSwap(before, after) {
			return true
		}
	}
}
