package throttle

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestOutage checks that short failures are not logged, and that long ones and their end are logged once.
func TestOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := After(3 * time.Second)
		failed := func(want bool) {
			t.Helper()
			if got := o.Failed(time.Now()); got != want {
				t.Errorf("a failure is told: %t, want %t", got, want)
			}
			time.Sleep(time.Second)
		}
		over := func(want bool) {
			t.Helper()
			if got := o.Over(); got != want {
				t.Errorf("the end is told: %t, want %t", got, want)
			}
		}
		over(false)
		for range 3 {
			failed(false)
		}
		over(false)
		for range 3 {
			failed(false)
		}
		failed(true)
		failed(false)
		over(true)
		over(false)
		failed(false)
		time.Sleep(5 * time.Second)
		o.Unfinished()
		failed(false)
	})
}
