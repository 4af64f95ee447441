package overload

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// TestSpare: policies take a fifth of the time for calls that are refused unread, or a sixteenth while others go first, as measured, but for
// what a processor does meanwhile.
func TestSpare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MaxCalls: 1000})
		processors := time.Duration(runtime.GOMAXPROCS(0))
		spend := func(perByte time.Duration, laps int) (spent time.Duration) {
			for range laps {
				time.Sleep(ms)
				of := g.Spare(1 << 30)
				took := time.Duration(of.Work) * perByte
				spent += took
				g.Spent(of, of.Work, took)
			}
			return spent
		}
		of, next := g.Spare(1<<30), g.Spare(1)
		if time.Duration(of.Work) != spareMost*processors/spareFirst || next.Work != 0 {
			t.Errorf("at first there is time for %d bytes, and then, before that is spent, for %d", of.Work, next.Work)
		}
		if g.Spent(of, 0, ms); g.Spare(1<<30).time != of.time {
			t.Error("what is not spent is not given back")
		}
		for _, perByte := range []time.Duration{10, 100} { // nanoseconds
			spend(perByte, 2000) // until it is known, and what it was before forgotten
			if got, want := spend(perByte, 500), 100*ms*processors; got < want*9/10 || got > want*11/10 {
				t.Errorf("where a byte takes %d ns, %v of 500 ms are spent on it, want %v", perByte, got, want)
			}
		}
		g.line.paced.Store(true)
		if got, want := spend(100, 320), 20*ms*processors; got < want*9/10 || got > want*11/10 {
			t.Errorf("while others go first %v of 320 ms are spent, want %v", got, want)
		}
		g.line.paced.Store(false)
		g.Spent(Spare{}, 1000, time.Second) // something else did
		time.Sleep(10 * ms)
		if g.Spare(1).Work == 0 {
			t.Error("there is no time after a processor has done something else")
		}
		one := New(Config{MaxCalls: 1000})
		one.Spent(Spare{}, Work(60), 100*ms)
		time.Sleep(2 * recent)
		for range 10 {
			one.Spent(one.Spare(0), 0, 0)
			time.Sleep(longest)
		}
		if work := one.Spare(1 << 20).Work; work < Work(1000) {
			t.Errorf("after the first call, which a processor left for 100 ms, there is time for %d", work)
		}
	})
}

// TestSpareOfMany: one call that takes next to no time for its bytes does not make others look as if they took as little.
func TestSpareOfMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, spent := New(Config{MaxCalls: 1000}), time.Duration(0)
		for i := range 2000 {
			time.Sleep(ms)
			if of := g.Spare(1 << 30); i%500 == 0 {
				g.Spent(of, of.Work, time.Duration(of.Work)/10)
			} else {
				took := time.Duration(of.Work) * 20
				spent += took
				g.Spent(of, of.Work, took)
			}
		}
		if most := 500 * ms * time.Duration(runtime.GOMAXPROCS(0)); spent > most {
			t.Errorf("%v of 2 s are spent, want %v at most", spent, most)
		}
	})
}

// TestBehind: what is read late is known to be, where callers do not wait for longer.
func TestBehind(t *testing.T) {
	t.Parallel()
	g := New(Config{MaxCalls: 1000})
	for _, x := range []struct {
		patient, always time.Duration
		want            bool
	}{{0, time.Second, false}, {20 * ms, 9 * ms, false}, {20 * ms, 11 * ms, true}, {enough, time.Second, false}} {
		g.line.patient = x.patient
		g.line.turns(time.Now(), ms, 0)
		if got := g.Behind(x.always); got != x.want {
			t.Errorf("where callers wait for %v and there has been more to read for %v: %t", x.patient, x.always, got)
		}
	}
}

// TestDrop: who is read too late is refused, and that counts for its domain, unless this is below its share.
func TestDrop(t *testing.T) {
	t.Parallel()
	g := New(Config{MaxCalls: 1000})
	for range 20 {
		g.shares.add(time.Since(g.begun), 1, 800)
		g.shares.add(time.Since(g.begun), 2, 8)
	}
	used := g.shares.used[1].Load()
	if g.Drop(&Seen{Domain: 2, Size: 800}) || !g.Drop(&Seen{Domain: 1, Size: 800}) {
		t.Error("want domain 1 dropped, and 2 not")
	}
	if n := g.shares.used[1].Load(); n <= used {
		t.Error("what is dropped does not count")
	}
}

// TestMissed: where calls have ended by the time they are taken up, fewer are let in, but not for those that their clients end at once, nor
// for a few, or now and then, nor for those of patient callers.
func TestMissed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, x := range []struct {
			calls                  int
			after, patience, apart time.Duration
			want                   bool
		}{
			{few, 30 * ms, 20 * ms, 0, false},
			{few + 1, 30 * ms, 20 * ms, 0, true},
			{1000, ms, 20 * ms, 0, false},
			{1000, 30 * ms, time.Second, 0, false},
			{1000, 30 * ms, 0, 0, false},
			{5 * few, 30 * ms, 20 * ms, 2 * period, false},
			{5 * few, 30 * ms, 20 * ms, period * 9 / 10, false},
			{few + 1, 30 * ms, haste - time.Microsecond, 0, true},
			{few + 1, 60 * ms, enough, 0, true},
		} {
			g := New(Config{MaxCalls: 1000})
			for range 500 {
				g.Enter(nil)
			}
			time.Sleep(2 * settle)
			for range x.calls {
				time.Sleep(x.apart)
				g.Missed(x.after, x.patience)
			}
			if g.Limited() != x.want {
				t.Errorf("%+v: limited %t", x, g.Limited())
			}
		}
	})
}
