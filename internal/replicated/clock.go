package replicated

import (
	"sync/atomic"
	"time"
)

const (
	quick = 100 * time.Millisecond // how long a call may take whose answer sets the clock
	unset = time.Minute            // after which that of a slow one does too
)

// clock follows the clock of a store. Until the store has told its time it is that of this process.
type clock struct{ last atomic.Pointer[reading] }

// reading is a time of the store, and when it was.
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

// set takes over a time that the store has told, in µs since the epoch, in a call that began at a time and has just ended. Of a call
// that took long it is not known when in between that was.
func (c *clock) set(micros int64, began time.Time) {
	took := time.Since(began)
	r := &reading{store: time.UnixMicro(micros), at: began.Add(took / 2)}
	if before := c.last.Load(); took > quick && before != nil && time.Since(before.at) < unset {
		return
	}
	c.last.Store(r)
}
