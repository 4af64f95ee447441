package memcached

import (
	"testing"
	"time"
)

// TestPace: how long operations take is learnt from batches for which others wait, and unlearnt from all.
func TestPace(t *testing.T) {
	t.Parallel()
	var p pace
	now := time.Now()
	batches := func(n, ops int, took time.Duration, busy bool) {
		for range n {
			now = now.Add(time.Second) // in which nothing happens
			p.done(now, now.Add(took), ops, busy)
			now = now.Add(took)
		}
	}
	about := func(what string, want time.Duration) {
		t.Helper()
		if got := p.of(100); got < want*9/10 || got > want*11/10 {
			t.Errorf("%s: 100 operations take %v, want about %v", what, got, want)
		}
	}
	about("nothing is known", 0)
	batches(500, 16, 16*time.Millisecond, false)
	about("nobody has waited", 0)
	batches(500, 16, 16*time.Millisecond, true)
	about("a slow server", 100*time.Millisecond)
	batches(500, 16, time.Second, false)
	about("a slower answer for which nobody waited", 100*time.Millisecond)
	batches(2000, 16, 160*time.Microsecond, false)
	about("quick answers for which nobody waited", time.Millisecond)
	p.done(now, now, 16, true)
	p.done(now, now.Add(time.Second), 0, true)
	about("what says nothing", time.Millisecond)

	begin := now.Add(time.Second) // two batches at once share the server
	for range 1000 {
		end := begin.Add(16 * time.Millisecond)
		p.done(begin, end.Add(-8*time.Millisecond), 16, true)
		p.done(begin, end, 16, true)
		begin = end
	}
	about("two batches at once", 50*time.Millisecond)
}
