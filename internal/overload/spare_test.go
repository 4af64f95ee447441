package overload

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// TestSpare: policies take a third of the time for calls that are refused unread, or a sixteenth while others go first, as measured, but for
// what a processor does meanwhile.
func TestSpare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MaxCalls: 1000})
		processors := time.Duration(runtime.GOMAXPROCS(0))
		spend := func(perByte time.Duration, laps int) (spent time.Duration) {
			for range laps {
				time.Sleep(ms)
				work := g.Spare()
				spent += time.Duration(work) * perByte
				g.Spent(work, time.Duration(work)*perByte)
			}
			return spent
		}
		if work := g.Spare(); time.Duration(work) != spareMost*processors/spareFirst {
			t.Errorf("at first there is time for %d bytes", work)
		}
		for _, perByte := range []time.Duration{10, 100} { // nanoseconds
			spend(perByte, 2000) // until it is known, and what it was before forgotten
			if got, want := spend(perByte, 300), 100*ms*processors; got < want*9/10 || got > want*11/10 {
				t.Errorf("where a byte takes %d ns, %v of 300 ms are spent on it, want %v", perByte, got, want)
			}
		}
		g.line.paced.Store(true)
		if got, want := spend(100, 320), 20*ms*processors; got < want*9/10 || got > want*11/10 {
			t.Errorf("while others go first %v of 320 ms are spent, want %v", got, want)
		}
		g.line.paced.Store(false)
		g.Spent(1000, time.Second) // something else did
		time.Sleep(10 * ms)
		if work := g.Spare(); work == 0 {
			t.Error("there is no time after a processor has done something else")
		}
		g.Spent(0, time.Second)
	})
}

// TestBehind: what is read late is known to be, where callers do not wait for longer.
func TestBehind(t *testing.T) {
	t.Parallel()
	g := New(Config{MaxCalls: 1000})
	for _, x := range []struct {
		patient, always time.Duration
		want            bool
	}{{20 * ms, 9 * ms, false}, {20 * ms, 11 * ms, true}, {enough, time.Second, false}} {
		g.line.patient = x.patient
		g.line.turns(time.Now(), ms, 0)
		if got := g.Behind(x.always); got != x.want {
			t.Errorf("where callers wait for %v and there has been more to read for %v: %t", x.patient, x.always, got)
		}
	}
}

// TestExpect: where so many calls come at once that they will be late, fewer are let in before anything is known of them.
func TestExpect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		processors := runtime.GOMAXPROCS(0)
		for _, x := range []struct {
			calls    int
			patience time.Duration
			want     bool
		}{{999, 20 * ms, false}, {1001, 20 * ms, true}, {9999, time.Second, false}, {9999, ms, false}} {
			g := New(Config{MaxCalls: 1 << 20})
			for range x.calls * processors {
				g.Enter(nil)
			}
			time.Sleep(2 * settle)
			if g.Expect(time.Now(), x.patience); g.Limited() != x.want {
				t.Errorf("%d calls for each processor, of callers who wait for %v: %t", x.calls, x.patience, g.Limited())
			}
		}
	})
}
