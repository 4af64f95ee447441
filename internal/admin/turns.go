package admin

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/throttle"
)

// Bounds of calls, so that neither decisions nor other callers are slowed down if a caller makes many.
const (
	mostAtOnce   = 4  // calls that are answered at a time
	mostNarrow   = 2  // of these, for callers who may only look, or whose token is for some domains only
	restOfNarrow = 9  // times as long as one of these took: together they get a fifth of a processor
	mostOfCaller = 32 // calls of one caller that are answered or wait
)

// turns has calls wait for one another. Those that watch are not among them.
type turns struct {
	all, narrow *throttle.Turns

	mu      sync.Mutex
	callers map[caller]int // how many calls are answered or wait
}

// caller is whose calls are counted together: on this machine a name may be that of strangers too, who may only look.
type caller struct {
	name   string
	narrow bool
}

func newTurns() *turns {
	return &turns{all: throttle.NewTurns(mostAtOnce, 0), narrow: throttle.NewTurns(mostNarrow, restOfNarrow), callers: make(map[caller]int)}
}

// take waits until a call of who may be answered. Unless there is an error, end has to be called after that.
func (t *turns) take(ctx context.Context, who *Who) (end func(), err error) {
	if !t.count(who, +1) {
		return nil, status.Errorf(codes.ResourceExhausted, "%d of your calls are in progress: make fewer at a time", mostOfCaller)
	}
	var held []func()
	end = func() {
		for _, done := range held {
			done()
		}
		t.count(who, -1)
	}
	wanted := []*throttle.Turns{t.narrow, t.all}
	if !who.narrow() {
		wanted = wanted[1:]
	}
	for _, w := range wanted {
		done, ok := w.Take(ctx)
		if !ok {
			end()
			return nil, status.Error(codes.ResourceExhausted, "other calls of the admin API take too long: try again later")
		}
		held = append(held, done)
	}
	return end, nil
}

// count counts calls of who that begin or end, and reports whether there are not too many.
func (t *turns) count(who *Who, delta int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := caller{who.Name, who.narrow()}
	n := t.callers[c] + delta
	switch {
	case n > mostOfCaller:
		return false
	case n == 0:
		delete(t.callers, c)
	default:
		t.callers[c] = n
	}
	return true
}
