package memory

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock()
		check := func(when string, off time.Duration) {
			t.Helper()
			want := engine.Micros(time.Now().Add(off).UnixMicro())
			if got := c.now(); got != want {
				t.Errorf("%s: %d, want %d", when, got, want)
			}
		}
		check("at first", 0)
		time.Sleep(time.Hour + 7*time.Microsecond)
		check("an hour later", 0)

		for _, set := range []time.Duration{time.Hour, -time.Hour, setBy} {
			c.day.Add(int64(set)) // as if the wall clock had been set by as much the other way
			time.Sleep(checkEvery - time.Microsecond)
			check("before it is noticed", set)
			time.Sleep(time.Microsecond)
			check("when it is noticed", 0)
		}

		c.day.Add(int64(setBy - 1))
		time.Sleep(checkEvery)
		check("no more than noise", setBy-1)
	})
}
