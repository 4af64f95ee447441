package descriptors

import (
	"iter"
	"math"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// MaxRequestsPerUnit is the largest number of hits per window.
const MaxRequestsPerUnit uint64 = engine.MaxLimit

// RateLimit is a limit of a rule, as written in the file.
type RateLimit struct {
	Limit           engine.Limit
	RequestsPerUnit uint32 // as on Envoy's wire: at most 2^32 − 1, whatever Limit.Hits is; see [RateLimit.Number]
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

// Number returns requests_per_unit.
func (l *RateLimit) Number() uint64 { return max(l.Limit.Hits, uint64(l.RequestsPerUnit)) }

// saturated returns n, or the largest number of 32 bits.
func saturated(n uint64) uint32 { return uint32(min(n, math.MaxUint32)) }

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
