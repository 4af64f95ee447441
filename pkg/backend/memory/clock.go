package memory

import (
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Interval of comparisons with the wall clock, and the smallest difference that is corrected.
const (
	checkEvery = time.Second
	setBy      = time.Millisecond
)

// clock derives wall-clock time from the monotonic clock, which is twice as fast to read and never goes backwards. Both run at the same
// rate, even while NTP slews them. A step of the wall clock is detected within checkEvery.
type clock struct {
	start   time.Time
	day     atomic.Int64 // wall-clock time at start, in ns since the epoch
	checked atomic.Int64 // time of the last comparison, in ns since start
}

func newClock() *clock {
	c := &clock{start: time.Now()}
	c.day.Store(c.start.UnixNano())
	return c
}

// now returns the time.
func (c *clock) now() engine.Micros {
	since := int64(time.Since(c.start))
	if checked := c.checked.Load(); since-checked >= int64(checkEvery) && c.checked.CompareAndSwap(checked, since) {
		c.check()
	}
	return engine.Micros((c.day.Load() + since) / int64(time.Microsecond))
}

// check adjusts c if the wall clock was set.
func (c *clock) check() {
	now := time.Now()
	day := now.UnixNano() - int64(now.Sub(c.start))
	if off := time.Duration(day - c.day.Load()); off.Abs() >= setBy {
		c.day.Store(day)
	}
}
