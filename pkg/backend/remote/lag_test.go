package remote

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLag checks that callers with a deadline leave twice the lag earlier, but use at least half of their budget, and that a high lag
// decays.
func TestLag(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ms := func(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }
		ctx, cancel := context.WithTimeout(t.Context(), ms(20))
		defer cancel()
		var l Lag
		for _, c := range []struct {
			late      time.Duration
			times     int
			opTimeout time.Duration
			want      time.Duration
		}{
			{0, 0, 0, ms(18)},
			{ms(1), 1, 0, ms(16)},
			{ms(1), 1, ms(10), ms(10)}, // the budget ends early enough
			{ms(4), 1, 0, ms(10)},
			{ms(4), 1, ms(12), ms(12)}, // at least half of the budget
			{time.Hour, 1, 0, ms(9)},
			{0, 10_000, 0, ms(18)},
		} {
			for range c.times {
				l.Note(c.late)
			}
			now := time.Now()
			budget, _ := Budget(ctx, now, c.opTimeout)
			if got := l.Leave(ctx, now, budget).Sub(now); got > c.want || got < c.want-time.Microsecond {
				t.Errorf("%d timers later that were %v late: a caller with 20 ms and a time-out of %v waits for %v, want %v",
					c.times, c.late, c.opTimeout, got, c.want)
			}
		}
		now := time.Now()
		l.Note(time.Hour)
		if got := l.Leave(context.WithoutCancel(ctx), now, DefaultOpTimeout).Sub(now); got != DefaultOpTimeout {
			t.Errorf("a caller without a deadline waits for %v, want %v", got, DefaultOpTimeout)
		}
	})
}

// TestLeaveByMonotonicClock checks that the result of Leave has a monotonic time even if the caller's deadline has none. It is compared
// with earlier times, and the wall clock may have been set in between.
func TestLeaveByMonotonicClock(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ctx, cancel := context.WithDeadline(t.Context(), now.Add(time.Hour).Round(0)) // Round(0) removes the monotonic time
	defer cancel()
	if leaves := new(Lag).Leave(ctx, now, 2*time.Hour); !strings.Contains(leaves.String(), " m=") {
		t.Errorf("a caller leaves at %v, by the wall clock alone", leaves)
	}
}
