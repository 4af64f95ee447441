package redis

import (
	"sync"
	"sync/atomic"
	"time"
)

// alarm calls ring when it is time, for one caller after the other. Nearly all callers have their answer long before, and
// the next one comes soon: so the timer of an earlier one is left to run, and only when it has run out does the alarm look
// the callers that are waiting by then, if any. A caller thus costs no timer.
type alarm struct {
	ring  func() // may also be called too early, and when no caller waits
	begun time.Time
	due   atomic.Int64 // when to ring, in ns since begun; 0 if no caller waits
	ends  atomic.Int64 // when the timer runs out, or has run out and is about to look; 0 if it does not run

	mu    sync.Mutex // held while the timer is set
	timer *time.Timer
}

func newAlarm(ring func()) *alarm {
	a := &alarm{ring: ring, begun: time.Now()}
	a.timer = time.AfterFunc(time.Hour, a.look)
	a.timer.Stop()
	return a
}

// set has it ring at a time, unless off is called before.
func (a *alarm) set(at time.Time) {
	due := max(int64(at.Sub(a.begun)), 1)
	a.due.Store(due) // before ends is read: look sets ends before it reads due
	if ends := a.ends.Load(); ends == 0 || ends > due {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.start(due)
	}
}

// off has it be silent.
func (a *alarm) off() { a.due.Store(0) }

// start has the timer run out at the given time, or earlier. The mutex is held.
func (a *alarm) start(due int64) {
	if ends := a.ends.Load(); ends != 0 && ends <= due {
		return
	}
	a.ends.Store(due)
	a.timer.Reset(time.Until(a.begun.Add(time.Duration(due))))
}

// look is called when the timer has run out.
func (a *alarm) look() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ends.Store(0)
	switch due := a.due.Load(); {
	case due == 0:
	case int64(time.Since(a.begun)) >= due:
		a.ring()
	default:
		a.start(due)
	}
}
