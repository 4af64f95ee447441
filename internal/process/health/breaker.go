package health

// Breaker is the state of the circuit breaker of a node of the backend. Metrics show its number.
type Breaker int32

// The states.
const (
	Closed   Breaker = iota // the node receives calls
	HalfOpen                // the node receives occasional calls, to find out whether it answers again
	Open                    // the node receives no calls
	Gone                    // the node is no longer in use
)

// ParseBreaker returns the state with a name of pkg/backend/remote.
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
