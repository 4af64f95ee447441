package replicated

import (
	"sync/atomic"
	"time"
)

const (
	quick = 100 * time.Millisecond // how long a call may take so that its answer sets the clock
	unset = time.Minute            // without a quick answer, after which that of a slow call sets it too
)

// clock follows the clock of a store. Until the first answer of the store it is the clock of this process.
type clock struct{ last atomic.Pointer[reading] }

// reading is a time of the store, and when this process read it.
type reading struct {
	store time.Time
	at    time.Time
}

// now returns the time by the clock of the store.
func (c *clock) now() time.Time {
	r := c.last.Load()
	if r == nil {
		return time.Now()
	}
	return r.store.Add(time.Since(r.at))
}

// set takes over a time of the store, in µs since the epoch, from a call that began at a time and has just ended. If the call took
// long, it is not known when in between the store read its clock.
func (c *clock) set(micros int64, began time.Time) {
	took := time.Since(began)
	r := &reading{store: time.UnixMicro(micros), at: began.Add(took / 2)}
	if before := c.last.Load(); took > quick && before != nil && time.Since(before.at) < unset {
		return
	}
	c.last.Store(r)
}
