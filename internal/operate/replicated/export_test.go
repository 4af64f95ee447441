package replicated

import (
	"context"
	"time"
)

const SweepEach = sweepEach

// WasAway makes r appear to have been out of sync for long.
func (r *Register) WasAway(ctx context.Context, long time.Duration) error {
	return r.ask(ctx, func(context.Context) error {
		r.inStep = r.inStep.Add(-long)
		return nil
	})
}
