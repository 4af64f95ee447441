package throttle_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
)

// TestTurns checks that the number of concurrent turns is bounded, that other callers wait up to 5 s, and that places rest.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		take := func(turns *throttle.Turns, wantWait time.Duration, want bool) func() {
			t.Helper()
			began := time.Now()
			done, ok := turns.Take(t.Context())
			if took := time.Since(began); ok != want || took != wantWait {
				t.Errorf("%t after %v, want %t after %v", ok, took, want, wantWait)
			}
			return done
		}
		plain, resting := throttle.NewTurns(2, 0), throttle.NewTurns(1, 9)
		take(plain, 0, true)
		done := take(plain, 0, true)
		take(plain, 5*time.Second, false)
		done()
		take(plain, 0, true)

		done = take(resting, 0, true)
		time.Sleep(100 * time.Millisecond)
		done()
		done = take(resting, 900*time.Millisecond, true)
		time.Sleep(time.Minute)
		done()
		take(resting, 2*time.Second, true)
	})
}

// TestTurnsOfTheGone checks that a free turn is granted even if the context has ended.
func TestTurnsOfTheGone(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		if _, ok := throttle.NewTurns(1, 0).Take(ctx); !ok {
			t.Fatal("a free turn was not taken")
		}
	}
}
