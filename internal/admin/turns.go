package admin

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Bounds of calls, so that neither decisions nor other callers feel it if somebody makes many.
const (
	mostAtOnce   = 4               // calls that are answered at a time
	mostNarrow   = 2               // of these, for callers who may only look, or whose token is for some domains only
	mostOfCaller = 32              // calls of one caller that are answered or wait
	longestWait  = 5 * time.Second // for a turn
	restOfNarrow = 9               // times as long as it took, a turn of these rests after a call: they get a fifth of a processor
	longestRest  = 100 * time.Millisecond
)

// turns has calls wait for one another. Those that watch are not among them.
type turns struct {
	all, narrow chan struct{} // have an element for each call that is answered

	mu      sync.Mutex
	callers map[string]int // how many calls are answered or wait, by the caller's name
}

func newTurns() *turns {
	return &turns{all: make(chan struct{}, mostAtOnce), narrow: make(chan struct{}, mostNarrow), callers: make(map[string]int)}
}

// take waits until a call of who may be answered. Unless there is an error, end has to be called after that.
func (t *turns) take(ctx context.Context, who *Who) (end func(), err error) {
	t.mu.Lock()
	full := t.callers[who.Name] >= mostOfCaller
	if !full {
		t.callers[who.Name]++
	}
	t.mu.Unlock()
	if full {
		return nil, status.Errorf(codes.ResourceExhausted, "%d of your calls are in progress: make fewer at a time", mostOfCaller)
	}
	ctx, cancel := context.WithTimeout(ctx, longestWait)
	defer cancel()
	narrow := !who.Full || who.Limited()
	if narrow && !enter(ctx, t.narrow) {
		t.leave(who)
		return nil, errNoTurn
	}
	if !enter(ctx, t.all) {
		if narrow {
			<-t.narrow
		}
		t.leave(who)
		return nil, errNoTurn
	}
	began := time.Now()
	return func() {
		<-t.all
		if narrow {
			time.AfterFunc(min(restOfNarrow*time.Since(began), longestRest), func() { <-t.narrow })
		}
		t.leave(who)
	}, nil
}

// errNoTurn is the error of a call that has waited in vain.
var errNoTurn = status.Error(codes.ResourceExhausted, "other calls of the admin API take too long: try again later")

// enter reports whether there was room in c before ctx ended.
func enter(ctx context.Context, c chan struct{}) bool {
	select {
	case c <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (t *turns) leave(who *Who) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.callers[who.Name]--; t.callers[who.Name] == 0 {
		delete(t.callers, who.Name)
	}
}
