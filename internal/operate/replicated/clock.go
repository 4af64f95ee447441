package replicated

import (
	"sync/atomic"
	"time"
)

const (
	quick = 100 * time.Millisecond // maximum duration of a call whose answer always sets the clock
	unset = time.Minute            // after this long without such an answer, a slower call sets the clock too
)

// clock follows the store's clock. Before the first answer of the store, it is this process's clock.
type clock struct{ last atomic.Pointer[reading] }

// reading is a time of the store, and the local time at which it was read.
type reading struct {
	store time.Time
	at    time.Time
}

// now returns the time by the store's clock.
func (c *clock) now() time.Time {
	r := c.last.Load()
	if r == nil {
		return time.Now()
	}
	return r.store.Add(time.Since(r.at))
}

// set sets the clock from an answer that just arrived: the store's time in µs since the epoch, and the start of the call. The
// store read its clock at an unknown point of the call, so slow calls are inaccurate.
func (c *clock) set(micros int64, began time.Time) {
	took := time.Since(began)
	r := &reading{store: time.UnixMicro(micros), at: began.Add(took / 2)}
	if before := c.last.Load(); took > quick && before != nil && time.Since(before.at) < unset {
		return
	}
	c.last.Store(r)
}
