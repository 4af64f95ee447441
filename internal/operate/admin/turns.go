package admin

import (
	"context"
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
	"github.com/ratelimitd/ratelimitd/internal/operate/access"
)

// Bounds of calls, so that no caller slows down decisions or other callers.
const (
	maxAtOnce    = 4  // concurrent calls
	maxNarrow    = 2  // of these, calls by read-only callers and callers limited to domains
	restOfNarrow = 9  // pause after such a call, as a multiple of its duration: together they use a fifth of a processor
	maxOfCaller  = 32 // running and waiting calls of one caller
)

// turns queues calls. Watch does not take a turn.
type turns struct {
	all, narrow *throttle.Turns
	callers     *throttle.Running[caller] // running and waiting calls
}

// caller identifies calls that are counted together. On this machine, a read-only stranger may have the same name as another
// caller.
type caller struct {
	name   string
	narrow bool
}

func newTurns() *turns {
	return &turns{
		all: throttle.NewTurns(maxAtOnce, 0), narrow: throttle.NewTurns(maxNarrow, restOfNarrow), callers: throttle.AtMost[caller](maxOfCaller, math.MaxInt),
	}
}

// take waits for a turn for a call of who. Without an error, the caller must call end.
func (t *turns) take(ctx context.Context, who *access.Who) (end func(), err error) {
	counted, ok := t.callers.Begin(caller{who.Name, who.Narrow()})
	if !ok {
		return nil, status.Errorf(codes.ResourceExhausted, "%d of your calls are in progress: make fewer at a time", maxOfCaller)
	}
	held := []func(){counted}
	end = func() {
		for _, done := range held {
			done()
		}
	}
	wanted := []*throttle.Turns{t.narrow, t.all}
	if !who.Narrow() {
		wanted = wanted[1:]
	}
	for _, w := range wanted {
		done, ok := w.Take(ctx)
		if !ok {
			end()
			return nil, status.Error(codes.ResourceExhausted, "other admin API calls are taking too long: try again later")
		}
		held = append(held, done)
	}
	return end, nil
}
