package health

import "slices"

// Breaker is the state of the circuit breaker of a store's server, as metrics number it.
type Breaker int32

// The states.
const (
	Closed   Breaker = iota // it is asked
	HalfOpen                // it is asked now and then, to see whether it answers again
	Open                    // it is not asked
	Gone                    // it is no longer in use, so there is nothing to ask
)

var breakers = [...]string{"closed", "half-open", "open", "gone"}

// ParseBreaker returns the state with a name of pkg/backend/remote; one that has none is open.
func ParseBreaker(name string) Breaker {
	if i := slices.Index(breakers[:], name); i >= 0 {
		return Breaker(i)
	}
	return Open
}

// String returns the name of the state.
func (b Breaker) String() string { return breakers[b] }
