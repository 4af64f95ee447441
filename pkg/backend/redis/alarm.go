package redis

import (
	"sync"
	"sync/atomic"
	"time"
)

// alarm calls ring at a given time, for one caller after the other. Nearly all callers get their answer long before, and the next caller
// arrives soon. So off leaves the timer running, and the alarm checks for a waiting caller only when the timer fires. A caller therefore
// rarely has to set a timer.
type alarm struct {
	ring  func() // may also be called too early, or without a waiting caller
	begun time.Time
	due   atomic.Int64 // time to ring, in ns since begun; 0 without a waiting caller
	ends  atomic.Int64 // time at which the timer fires or has fired, until look runs; 0 without a running timer

	mu    sync.Mutex // held while the timer is set
	timer *time.Timer
}

func newAlarm(ring func()) *alarm {
	a := &alarm{ring: ring, begun: time.Now()}
	a.timer = time.AfterFunc(time.Hour, a.look)
	a.timer.Stop()
	return a
}

// set makes the alarm ring at a time, unless off is called before.
func (a *alarm) set(at time.Time) {
	due := max(int64(at.Sub(a.begun)), 1)
	a.due.Store(due) // before ends is read: look sets ends before it reads due
	if ends := a.ends.Load(); ends == 0 || ends > due {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.start(due)
	}
}

// off silences the alarm.
func (a *alarm) off() { a.due.Store(0) }

// start makes the timer fire at the given time or earlier. The mutex must be held.
func (a *alarm) start(due int64) {
	if ends := a.ends.Load(); ends != 0 && ends <= due {
		return
	}
	a.ends.Store(due)
	a.timer.Reset(time.Until(a.begun.Add(time.Duration(due))))
}

// look runs when the timer has fired.
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
