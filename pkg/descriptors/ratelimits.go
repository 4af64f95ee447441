package descriptors

import (
	"iter"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// RateLimit is one limit of a rule, as the file gives it.
type RateLimit struct {
	Limit           engine.Limit
	RequestsPerUnit uint32
	Unit            Unit
	Multiplier      uint32 // of the unit; 1 if the file has none
	Name            string
	Replaces        []string
}

// RateLimits are the limits that a descriptor has to pass together, in the order of the file. The zero value has none.
type RateLimits struct {
	list   []RateLimit
	limits engine.Limits // those of list, side by side; empty if list is an unlimited one
}

// Len returns how many there are.
func (r *RateLimits) Len() int { return len(r.list) }

// At returns the i-th limit, which must not be changed.
func (r *RateLimits) At(i int) *RateLimit { return &r.list[i] }

// All yields the limits, which must not be changed.
func (r *RateLimits) All() iter.Seq2[int, *RateLimit] {
	return func(yield func(int, *RateLimit) bool) {
		for i := range r.list {
			if !yield(i, &r.list[i]) {
				return
			}
		}
	}
}

// Limits returns the limits as backends take them, in the same order; none of an unlimited rule. They must not be changed.
func (r *RateLimits) Limits() engine.Limits { return r.limits }

// Append adds a copy of l, which must be limited.
func (r *RateLimits) Append(l *RateLimit) {
	r.list = append(r.list, *l)
	r.limits = append(r.limits, l.Limit)
}

// Clear removes all limits, and keeps the memory for others.
func (r *RateLimits) Clear() { r.list, r.limits = r.list[:0], r.limits[:0] }

// From returns the limits from index i on. They share memory with r.
func (r *RateLimits) From(i int) RateLimits {
	n := len(r.list)
	return RateLimits{r.list[i:n:n], r.limits[i:n:n]}
}
