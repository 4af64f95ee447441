package descriptors

import (
	"iter"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// RateLimit is a limit of a rule, as written in the file.
type RateLimit struct {
	Limit           engine.Limit
	RequestsPerUnit uint32
	Unit            Unit
	Multiplier      uint32 // number of units; 1 by default
	Name            string
	Replaces        []string
}

// RateLimits are the limits of a descriptor, which all must admit, in file order. The zero value is empty.
type RateLimits struct {
	list   []RateLimit
	limits engine.Limits // the Limit fields of list; empty if the rule is unlimited
}

// Len returns the number of limits.
func (r *RateLimits) Len() int { return len(r.list) }

// At returns the i-th limit. The caller must not modify it.
func (r *RateLimits) At(i int) *RateLimit { return &r.list[i] }

// All yields the limits. The caller must not modify them.
func (r *RateLimits) All() iter.Seq2[int, *RateLimit] {
	return func(yield func(int, *RateLimit) bool) {
		for i := range r.list {
			if !yield(i, &r.list[i]) {
				return
			}
		}
	}
}

// Limits returns the limits for backends, in the same order; none for an unlimited rule. The caller must not modify them.
func (r *RateLimits) Limits() engine.Limits { return r.limits }

// Append adds a copy of l, which must not be unlimited.
func (r *RateLimits) Append(l *RateLimit) {
	r.list = append(r.list, *l)
	r.limits = append(r.limits, l.Limit)
}

// Clear removes all limits but retains their memory.
func (r *RateLimits) Clear() { r.list, r.limits = r.list[:0], r.limits[:0] }

// From returns the limits from index i on. The result shares memory with r.
func (r *RateLimits) From(i int) RateLimits {
	n := len(r.list)
	return RateLimits{r.list[i:n:n], r.limits[i:n:n]}
}
