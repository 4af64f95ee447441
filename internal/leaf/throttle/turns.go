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

// Turns bound how many do at a time what others would feel. Its methods are safe for concurrent use.
type Turns struct {
	places chan struct{} // has an element for each that is taken
	rest   int
}

// NewTurns returns turns for so many at a time. After each one its place rests for rest times as long as it took, but for 2 s at
// most: so with a rest of 9 each place takes a tenth of a processor, however much is asked for.
func NewTurns(places, rest int) *Turns { return &Turns{make(chan struct{}, places), rest} }

// Take waits for a turn, for 5 s at most, and reports whether it has come. Then done has to be called at its end.
func (t *Turns) Take(ctx context.Context) (done func(), ok bool) {
	ctx, cancel := context.WithTimeout(ctx, turnWait)
	defer cancel()
	select {
	case t.places <- struct{}{}:
	case <-ctx.Done():
		return nil, false
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
