package shares

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Clone returns a deep copy of b.
func (b *Bucket) Clone() *Bucket {
	c := *b
	c.holders, c.byID = nil, maps.Clone(b.byID)
	for _, h := range b.holders {
		d := *h
		d.sent = slices.Clone(h.sent)
		c.holders = append(c.holders, &d)
		c.byID[h.ID] = &d
	}
	c.others, c.heirs, c.actions = slices.Clone(b.others), slices.Clone(b.heirs), slices.Clone(b.actions)
	return &c
}

// Key returns a text that is equal for buckets whose future behavior is the same.
func (b *Bucket) Key() string {
	var s strings.Builder
	now := b.clock.now
	rel := func(t Micros) Micros {
		if t == never || t == 0 {
			return t
		}
		return t - now
	}
	fmt.Fprintf(&s, "%.6f %.6f %d %d %d %.4f|", b.left, b.paid, rel(b.start), rel(b.ends), rel(b.due), b.cap)
	for _, h := range b.holders {
		fmt.Fprintf(&s, "%d %.4f %d %d %d %d %.6f %.6f %v %.4f %d;", h.state, h.demand.rate, rel(h.lastReport), rel(h.assignedAt), rel(h.moved),
			h.interval, h.tokens, h.raised, h.fell, h.target, rel(h.active)/(10*second))
		for _, u := range h.sent {
			fmt.Fprintf(&s, " %.6f %.1f %d %d", u.rate, u.burst, rel(u.until), rel(u.since))
		}
	}
	return s.String()
}
