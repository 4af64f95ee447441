package overload

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// read has so many bytes of c wait to be worked on, and returns what is closed when they are.
func read(g *Gate, c *Client, size int) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		g.Read(c, size)
		close(done)
	}()
	synctest.Wait()
	return done
}

// isDone reports whether c is closed.
func isDone(c chan struct{}) bool {
	synctest.Wait()
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestPortions: while a line is paced, what was read is worked on a portion at a time: first what has waited since an earlier round,
// and of a round what is least.
func TestPortions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MaxCalls: 1000})
		l := &g.line
		if !isDone(read(g, new(Client), 1<<20)) {
			t.Fatal("something waits although the line is not paced")
		}
		l.paced.Store(true)
		l.readers.begin()
		sizes := []int{16 << 10, 300, 2000, 200, 1000, 16 << 10}
		var all []chan struct{}
		for i, size := range sizes {
			if i == len(sizes)-2 {
				l.readers.begin()
			}
			all = append(all, read(g, new(Client), size))
		}
		var got []string
		for l.readers.next(portion) > 0 {
			step := ""
			for _, c := range all {
				if isDone(c) {
					step += "g"
				} else {
					step += "-"
				}
			}
			got = append(got, step)
		}
		want := []string{
			"-ggg--", // 200, 300 and 2000: with the last one it is a portion
			"gggg--", // more than a portion, but not divided
			"ggggg-", // of the second round
			"gggggg",
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("who goes on in each step (-want +got):\n%s", d)
		}
		last := read(g, new(Client), 16<<10)
		l.mu.Lock()
		l.rush()
		l.mu.Unlock()
		if !isDone(last) || !isDone(read(g, new(Client), 16<<10)) {
			t.Error("something waits although the line is no longer paced")
		}
	})
}

// TestPaced: a line is paced for a second after a call went first beside others. Meanwhile turns are handed out a portion at a time, and
// calls are to take less.
func TestPaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MaxCalls: 1000})
		l, now := &g.line, time.Now()
		l.room, l.patient = 1000, 20*ms
		l.open.Store(true) // so that this test gives the turns
		came := func(domain uint32) (first bool) {
			_, first = l.enter(&place{Call: Call{Domain: domain, Size: 300, Deadline: now.Add(time.Minute)}, turn: make(chan Turn, 1)})
			return first
		}
		if !came(1) || l.begin(now) != 0 {
			t.Fatal("a line with one domain is paced")
		}
		if came(1) || !came(2) || l.begin(now) < portion {
			t.Fatal("a line is not paced although a call of another domain went first")
		}
		if got := l.brisk(); got != l.patient*beside/100 {
			t.Errorf("calls are to take %v in a paced line", got)
		}
		var all []*place
		for range 12 {
			all = append(all, enter(l, Call{Domain: 1, Size: 300, Deadline: now.Add(time.Minute)}))
		}
		l.turns(now, 0, 0)
		if got := verdicts(all); got != "------------" {
			t.Errorf("turns are handed out at once: %s", got)
		}
		for _, want := range []string{"---------ggg", "------ggg---"} { // the newest first
			l.next(portion, ms)
			if got := verdicts(all); got != want {
				t.Errorf("with the next portion of turns: %s, want %s", got, want)
			}
		}
		portions := 2
		for l.next(portion, ms) {
			portions++
		}
		if portions != 5 || verdicts(all) != "gggggg------" {
			t.Errorf("13 turns were %d portions", portions)
		}
		if l.begin(now.Add(healed+1)) != 0 || l.paced.Load() {
			t.Error("a line is paced a second after the last call went first")
		}
		if got := l.brisk(); got != l.patient*percent/100 {
			t.Errorf("calls are to take %v in a line that is not paced", got)
		}
	})
}
