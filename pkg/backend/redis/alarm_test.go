package redis

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// rung returns an alarm, and a channel that receives the times at which it rings.
func rung() (*alarm, chan time.Time) {
	at := make(chan time.Time, 1000)
	return newAlarm(func() { at <- time.Now() }), at
}

// TestAlarm checks that an alarm rings at the time of the current caller, not of an earlier one.
func TestAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, at := rung()
		begun := time.Now()
		for _, wait := range []time.Duration{50, 10, 300, 1, 0, 20} { // longer and shorter than the previous one, which was answered
			a.set(time.Now().Add(wait * time.Millisecond))
			time.Sleep(wait / 2 * time.Millisecond)
			a.off()
		}
		synctest.Wait()
		for len(at) > 0 { // rings without a waiting caller
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

// TestAlarmAlwaysRings checks that no caller waits beyond its time, whatever the times of earlier callers, and whenever these were
// answered.
func TestAlarmAlwaysRings(t *testing.T) {
	a, at := rung()
	for range 2000 {
		due := time.Now().Add(time.Duration(rand.IntN(500)) * time.Microsecond)
		a.set(due)
		if rand.IntN(2) == 0 { // answered
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
