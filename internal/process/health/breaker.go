package health

// Breaker is the state of the circuit breaker of a backend's server, as a number in metrics.
type Breaker int32

// The states.
const (
	Closed   Breaker = iota // it is asked
	HalfOpen                // it is asked now and then, to see whether it answers again
	Open                    // it is not asked
	Gone                    // it is no longer in use, so there is nothing to ask
)

// ParseBreaker returns the state that pkg/backend/remote calls by a name.
func ParseBreaker(name string) Breaker {
	for b := range Gone {
		if b.String() == name {
			return b
		}
	}
	return Gone
}

// String returns the name of the state.
func (b Breaker) String() string {
	return [...]string{"closed", "half-open", "open", "gone"}[b]
}
