package replicated

import (
	"context"
	"time"
)

const SweepEach = sweepEach

// WasAway makes r appear to have been out of sync for long.
func (r *Register) WasAway(ctx context.Context, long time.Duration) error {
	return r.withStore(ctx, func(context.Context) error {
		r.inSync = r.inSync.Add(-long)
		return nil
	})
}
