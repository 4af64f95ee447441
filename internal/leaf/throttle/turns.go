package throttle

import (
	"context"
	"sync"
	"time"
)

const (
	turnWait    = 5 * time.Second
	longestRest = 2 * time.Second
)

// Turns bounds the concurrency of expensive operations. Its methods are safe for concurrent use.
type Turns struct {
	places chan struct{} // contains an element for each place in use
	rest   int
}

// NewTurns returns a Turns with the given number of places. After each turn, its place rests for rest times the length of the turn, at
// most 2 s. So with a rest of 9, each place uses a tenth of a processor, regardless of demand.
func NewTurns(places, rest int) *Turns { return &Turns{make(chan struct{}, places), rest} }

// Take waits at most 5 s for a turn that is not free. If ok is true, the caller must call done at the end of its turn.
func (t *Turns) Take(ctx context.Context) (done func(), ok bool) {
	ctx, cancel := context.WithTimeout(ctx, turnWait)
	defer cancel()
	select {
	case t.places <- struct{}{}: // even for a client that has closed its half of the connection, which ends ctx
	default:
		select {
		case t.places <- struct{}{}:
		case <-ctx.Done():
			return nil, false
		}
	}
	began := time.Now()
	return func() {
		time.AfterFunc(min(time.Duration(t.rest)*time.Since(began), longestRest), func() { <-t.places })
	}, true
}

// maxNetworks bounds the networks whose turns are remembered. Beyond it they start again.
const maxNetworks = 1000

// NetworkTurns are turns that each network has for itself. Its methods are safe for concurrent use.
type NetworkTurns struct {
	Places int // at a time

	mu    sync.Mutex
	turns map[string]*Turns // by network
}

// Of returns the turns of the network of an address.
func (n *NetworkTurns) Of(from string) *Turns {
	name := Network(from)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.turns == nil || len(n.turns) >= maxNetworks {
		n.turns = make(map[string]*Turns)
	}
	if n.turns[name] == nil {
		n.turns[name] = NewTurns(n.Places, 0)
	}
	return n.turns[name]
}
