package redis

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// rung is an alarm that says when it rang.
func rung() (*alarm, chan time.Time) {
	at := make(chan time.Time, 1000)
	return newAlarm(func() { at <- time.Now() }), at
}

// An alarm rings when the caller of the moment must leave, not an earlier one.
func TestAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, at := rung()
		begun := time.Now()
		for _, wait := range []time.Duration{50, 10, 300, 1, 0, 20} { // longer and shorter than the one before, which was answered
			a.set(time.Now().Add(wait * time.Millisecond))
			time.Sleep(wait / 2 * time.Millisecond)
			a.off()
		}
		synctest.Wait()
		for len(at) > 0 { // that without any time
			<-at
		}
		due := time.Now().Add(30 * time.Millisecond)
		a.set(due)
		if got := <-at; !got.Equal(due) {
			t.Errorf("rang %v after the beginning, want %v", got.Sub(begun), due.Sub(begun))
		}
		a.off()
		time.Sleep(time.Hour)
		if len(at) != 0 {
			t.Errorf("rang %d times with no one there", len(at))
		}
		due = time.Now().Add(time.Millisecond)
		a.set(due)
		if got := <-at; !got.Equal(due) {
			t.Errorf("rang %v late after an hour", got.Sub(due))
		}
	})
}

// No one waits for longer than they have, whatever those before them had, and when they were answered.
func TestAlarmAlwaysRings(t *testing.T) {
	a, at := rung()
	for range 2000 {
		due := time.Now().Add(time.Duration(rand.IntN(500)) * time.Microsecond)
		a.set(due)
		if rand.IntN(2) == 0 { // is answered
			time.Sleep(time.Until(due) * 9 / 10)
			a.off()
			continue
		}
		for rang := false; !rang; {
			select {
			case got := <-at:
				rang = !got.Before(due)
			case <-time.After(10 * time.Second):
				t.Fatal("did not ring")
			}
		}
		a.off()
	}
}
