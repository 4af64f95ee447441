package overload

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// read has so many bytes of c wait to be worked on, and returns what is closed when they are.
func read(g *Gate, c *Client, size int) (done chan struct{}) {
	return await(g, c, Read{Size: size, Full: size >= full})
}

// await has what was read wait to be worked on, and returns what is closed when it is.
func await(g *Gate, c *Client, r Read) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		g.AwaitRead(c, r)
		close(done)
	}()
	synctest.Wait()
	return done
}

// full is what has been read if there was more.
const full = 16 << 10

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

// TestPortions: while a line is paced, what was read is worked on a portion at a time, and what is small at once.
func TestPortions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MaxCalls: 1000})
		l := &g.line
		if !isDone(read(g, new(Client), full)) {
			t.Fatal("something waits although the line is not paced")
		}
		l.paced.Store(true)
		l.readers.begin()
		var all []chan struct{}
		for _, size := range []int{full, 3000, 2500, full, small} {
			all = append(all, read(g, new(Client), size))
		}
		var got []string
		for range 4 {
			l.readers.next(portions * portion)
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
			"g---g", // more than a portion, but not divided
			"ggg-g",
			"ggggg",
			"ggggg",
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("who goes on in each step (-want +got):\n%s", d)
		}
		last := read(g, new(Client), full)
		l.mu.Lock()
		l.unpace()
		l.mu.Unlock()
		if !isDone(last) || !isDone(read(g, new(Client), full)) {
			t.Error("something waits although the line is no longer paced")
		}
	})
}

// TestRoundEnds: a round has all go on that waited when it began, and whoever has more to read than there was room for, but not all that
// comes meanwhile: who always has something to read would put off all turns.
func TestRoundEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MaxCalls: 1000})
		r := &g.line.readers
		g.line.paced.Store(true)
		const some = small + 1
		var a, b, c Client
		r.begin()
		read(g, &a, some)
		read(g, &b, full)
		r.begin()
		for _, step := range []struct {
			joins []*Client
			sizes []int
			more  bool
		}{
			{nil, nil, true}, // a goes on; b waits since before
			{[]*Client{&a, &c}, []int{some, some}, false}, // b; a and c have come since
			{[]*Client{&b}, []int{full}, true},            // a; there was more to read of b
			{nil, nil, true},                              // c
			{nil, nil, false},                             // b
			{[]*Client{&a}, []int{some}, false},           // a, which came in this round
		} {
			for i, c := range step.joins {
				read(g, c, step.sizes[i])
			}
			if more := r.next(portion); more != step.more {
				t.Errorf("after %d joined the round goes on: %v", len(step.joins), more)
			}
		}
		if len(r.queue) > 0 {
			t.Errorf("%d still wait", len(r.queue))
		}
	})
}

// TestReadAhead: connections with calls of domains below their share go on before others, but a few times in a round, so that nobody has far
// more read than others for the sake of a few calls.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MaxCalls: 1000})
		r := &g.line.readers
		g.line.paced.Store(true)
		r.begin()
		clients, all := make([]Client, 6), []chan struct{}{}
		join := func(i int, first bool) { all = append(all, await(g, &clients[i], Read{Size: full, First: first})) }
		order := func() (who string) {
			for range all {
				r.next(portion)
				for i, c := range all {
					if c != nil && isDone(c) {
						who += string(rune('0' + i))
						all[i] = nil
					}
				}
			}
			all = nil
			return who
		}
		for i, first := range []bool{false, false, true, true, true, false} {
			join(i, first)
		}
		if got, want := order(), "234015"; got != want {
			t.Errorf("they went on in the order %s, want %s", got, want)
		}
		for range overtakings - 1 {
			join(0, false)
			join(2, true)
			if got, want := order(), "10"; got != want {
				t.Errorf("again in this round they went on in the order %s, want %s", got, want)
			}
		}
		join(0, false)
		join(2, true) // too often
		join(1, true)
		if got, want := order(), "201"; got != want {
			t.Errorf("then they went on in the order %s, want %s", got, want)
		}
		r.begin()
		join(0, false)
		join(2, true)
		if r.begin(); r.due != 2 {
			t.Errorf("%d go on in a round that begins with two", r.due)
		}
		if got, want := order(), "10"; got != want || r.due != 0 {
			t.Errorf("in the next round they went on in the order %s, want %s; then %d are due", got, want, r.due)
		}
		join(2, false)
		join(3, true)
		if r.end(); !isDone(all[0]) || !isDone(all[1]) || len(r.ahead)+len(r.queue) > 0 {
			t.Error("somebody waits in the end")
		}
	})
}

// TestOwed: turns of calls that are dismissed in a paced line are handed out before their callers have given up, however many they are.
func TestOwed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MaxCalls: 1000})
		l, now := &g.line, time.Now()
		l.paced.Store(true)
		var all []*place
		for range 1000 {
			all = append(all, enter(l, Call{Domain: 1, Size: 300, Deadline: now.Add(ms)}))
		}
		l.turns(now, 0, 0)
		steps := 0
		for ; l.next(portion, ms/2); steps++ {
			if steps > 40 {
				t.Fatalf("after %d portions %d turns are still to be handed out", steps, len(l.others))
			}
		}
		if n := strings.Count(verdicts(all), "l"); n != len(all) || l.owed != 0 || l.bytes != 0 {
			t.Errorf("%d of %d were dismissed; %d and %d bytes are left", n, len(all), l.owed, l.bytes)
		}
	})
}

// TestPaced: a line is paced while calls go first that are well below their share, and a second longer. Meanwhile turns are
// handed out a portion at a time, those of calls that go on before those of others, and calls are to take less.
func TestPaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MaxCalls: 1000})
		l, now := &g.line, time.Now()
		l.room, l.patient = 10, 20*ms
		l.open.Store(true) // so that this test gives the turns
		came := func(domain uint32) (first bool) {
			_, first = l.enter(&place{Call: Call{Domain: domain, Size: 300, Deadline: now.Add(time.Minute)}, turn: make(chan Turn, 1)})
			return first
		}
		if !came(1) || l.begin(now) != 0 {
			t.Fatal("a line with one domain is paced")
		}
		for range 3 {
			g.shares.add(0, 1, 300)
		}
		if !came(2) || l.begin(now) < portion {
			t.Fatal("a line is not paced although a call of another domain went first")
		}
		if got := l.brisk(); got != l.patient*pacedPercent/100 {
			t.Errorf("calls are to take %v in a paced line", got)
		}
		var all []*place
		for i := range 12 {
			left := time.Minute
			if i < 4 {
				left = 3 * ms / 2 // enough for a policy
			}
			all = append(all, enter(l, Call{Domain: 1, Size: 300, Deadline: now.Add(left)}))
		}
		held := l.bytes
		l.turns(now, 0, 0)
		if got := verdicts(all); got != "------------" || l.bytes != held {
			t.Errorf("turns are handed out at once: %s, %d bytes wait of %d", got, l.bytes, held)
		}
		for _, want := range []string{"---------ggg", "------ggg---", "l---gg------", "-lll--------"} {
			l.next(portion, ms)
			if got := verdicts(all); got != want {
				t.Errorf("with the next portion: %s, want %s", got, want)
			}
		}
		if l.bytes != 0 || l.next(portion, ms) {
			t.Errorf("%d bytes wait after all turns were handed out", l.bytes)
		}
		if l.begin(now.Add(healed+1)) != 0 || l.paced.Load() {
			t.Error("a line is paced long after the last call went first")
		}
		if got := l.brisk(); got != l.patient*percent/100 {
			t.Errorf("calls are to take %v in a line that is not paced", got)
		}
	})
}
