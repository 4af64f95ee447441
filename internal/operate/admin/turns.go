package admin

import (
	"context"
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
	"github.com/ratelimitd/ratelimitd/internal/operate/access"
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
	callers     *throttle.Running[caller] // calls that are answered or wait
}

// caller is whose calls are counted together: on this machine a name may be that of strangers too, who may only look.
type caller struct {
	name   string
	narrow bool
}

func newTurns() *turns {
	return &turns{
		all: throttle.NewTurns(mostAtOnce, 0), narrow: throttle.NewTurns(mostNarrow, restOfNarrow), callers: throttle.AtMost[caller](mostOfCaller, math.MaxInt),
	}
}

// take waits until a call of who may be answered. Unless there is an error, end has to be called after that.
func (t *turns) take(ctx context.Context, who *access.Who) (end func(), err error) {
	counted, ok := t.callers.Begin(caller{who.Name, who.Narrow()})
	if !ok {
		return nil, status.Errorf(codes.ResourceExhausted, "%d of your calls are in progress: make fewer at a time", mostOfCaller)
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
