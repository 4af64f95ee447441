package overload

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// enter has a call wait in l, of which the test gives the turns.
func enter(l *line, c Call) *place {
	p := &place{Call: c, patience: forever, came: time.Now(), turn: make(chan Turn, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open.Store(true)
	l.calls = append(l.calls, p)
	l.bytes += c.Size
	return p
}

// verdict says what became of p: '-' if it still waits.
func verdict(p *place) byte {
	select {
	case turn := <-p.turn:
		return "glx"[turn.Verdict]
	default:
		return '-'
	}
}

func verdicts(places []*place) (all string) {
	for _, p := range places {
		all += string(verdict(p))
	}
	return all
}

// TestFirst: a call of a domain that has had less than its share does not wait for a turn, as long as few go on beyond the room, and
// there is time to decide it.
func TestFirst(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		domain  uint32
		working int
		left    time.Duration
		first   bool
	}{
		"below its share":                {2, 9, 20 * ms, true},
		"without room":                   {2, 10, 20 * ms, true},
		"the last of a few beyond":       {2, 25, 20 * ms, true},
		"one too many":                   {2, 26, 20 * ms, false},
		"above its share":                {1, 0, 20 * ms, false},
		"with too little time":           {2, 0, 2 * ms, false},
		"above, and with too little":     {1, 0, 2 * ms, false},
		"with just enough for a store's": {2, 0, 9 * ms, true},
	} {
		g := New(Config{MaxCalls: 1000})
		l, now := &g.line, time.Now()
		l.room, l.working, l.took, l.patient = 10, c.working, 4*ms, 20*ms
		l.open.Store(true)
		g.shares.add(0, 1, 1000)
		p := &place{Call: Call{Domain: c.domain, Deadline: now.Add(c.left)}, patience: forever, turn: make(chan Turn, 1)}
		turn, first := l.enter(p)
		if first != c.first || first != (turn.Verdict == Go && turn.counted) {
			t.Errorf("%s: first is %v, %+v", name, first, turn)
		}
		if waits, goes := len(l.calls) == 1, l.working == c.working+1; waits == first || goes != first {
			t.Errorf("%s: first is %v, waits %v, goes on %v", name, first, waits, goes)
		}
	}
}

// TestTimeLeft: whether there is time for a call depends on how long it takes to read what arrives, of late, and to answer.
func TestTimeLeft(t *testing.T) {
	t.Parallel()
	type busy struct{ lap, took time.Duration }
	got := map[busy]string{}
	for _, b := range []busy{{0, 0}, {ms, 0}, {2 * ms, 4 * ms}, {2 * ms, time.Second}} {
		g := New(Config{MaxCalls: 1000})
		l, now := &g.line, time.Now()
		l.room, l.lap, l.step, l.took, l.patient = 1000, b.lap, b.lap, b.took, 20*ms
		var all []*place
		for left := range 15 {
			all = append(all, enter(l, Call{Deadline: now.Add(time.Duration(left) * ms)}))
		}
		l.turns(now, b.lap, 0)
		got[b] = verdicts(all)
	}
	want := map[busy]string{
		{0, 0}:                "xlggggggggggggg", // 2 ms for the answer on its way
		{ms, 0}:               "xxxlggggggggggg",
		{2 * ms, 4 * ms}:      "xxxxxllllllgggg",
		{2 * ms, time.Second}: "xxxxxlllllllllg", // at most twice what calls are to take
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("verdicts by milliseconds left (-want +got):\n%s", d)
	}
}

// TestRoom: there is more room while calls are answered soon, and less when they are not, or the store has no time for them; but
// not because the store takes long by itself.
func TestRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MaxCalls: 1000})
		l := &g.line
		l.patient = 20 * ms
		waits := enter(l, Call{Deadline: time.Now().Add(time.Hour)})
		rounds := func(n int, took time.Duration, shed bool) int {
			for range n {
				begun := time.Now()
				time.Sleep(took)
				for range 50 {
					l.working++
					l.done(Turn{Verdict: Go, counted: true, at: begun}, shed, time.Now())
				}
			}
			return l.room
		}
		if room := rounds(20, 3*ms, false); room <= firstRoom {
			t.Errorf("with answers after 3 ms there is room for %d", room)
		}
		if room := rounds(200, 9*ms, false); room != leastRoom {
			t.Errorf("with answers after 9 ms there is room for %d, want %d", room, leastRoom)
		}
		if room := rounds(200, 8*ms, false); room <= firstRoom {
			t.Errorf("when no answer has come sooner for two seconds there is room for %d", room)
		}
		before := l.room
		for range 20 { // the near cache answers some
			l.working++
			l.done(Turn{Verdict: Go, counted: true, at: time.Now()}, false, time.Now())
			if room := rounds(10, 9*ms, false); room < before {
				t.Fatalf("when only the near cache answers sooner there is room for %d, and for %d before", room, before)
			}
		}
		before = l.room
		if room := rounds(60, ms, true); room >= before/2 {
			t.Errorf("when the store sheds there is room for %d, and for %d before", room, before)
		}
		if verdict(waits) != '-' {
			t.Error("somebody has given a turn")
		}
	})
}

// TestRoomFar: what a store takes because it is far away takes no room from others, however unevenly it answers; but only so much of what
// callers wait is believed of the way.
func TestRoomFar(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		way, most time.Duration
		grows     bool
	}{{0, 16 * ms, false}, {3 * ms, 16 * ms, false}, {6 * ms, 16 * ms, true}, {100 * ms, 22 * ms, false}} {
		synctest.Test(t, func(t *testing.T) {
			g := New(Config{MaxCalls: 1000, Way: func() time.Duration { return c.way }})
			l := &g.line
			l.patient = 20 * ms
			enter(l, Call{Deadline: time.Now().Add(time.Hour)})
			l.working = mostRoom // so that nobody else goes on
			l.turns(time.Now(), 0, 0)
			l.working = 0
			for range 100 {
				for took := 2 * ms; took <= c.most; took += ms {
					begun := time.Now()
					time.Sleep(took)
					l.working++
					l.done(Turn{Verdict: Go, counted: true, at: begun}, false, time.Now())
				}
			}
			if c.grows != (l.room > firstRoom) || !c.grows && l.room != leastRoom {
				t.Errorf("with a store that is %v away, and answers after 2 ms to %v, there is room for %d", c.way, c.most, l.room)
			}
		})
	}
}

// TestSwamped: where so many wait that not even policies can answer them in time, fewer are let in before the next turn, which they put
// off. Patient callers do not count, nor do those whose time is over at once, whoever waits beside them.
func TestSwamped(t *testing.T) {
	t.Parallel()
	type crowd struct {
		calls    int // for each processor
		patience time.Duration
	}
	for name, c := range map[string]struct {
		crowds  []crowd
		swamped bool
	}{
		"Envoy's":                   {[]crowd{{1000, 20 * ms}}, false},
		"one too many of Envoy's":   {[]crowd{{1001, 20 * ms}}, true},
		"hasty":                     {[]crowd{{501, haste}}, true},
		"patient":                   {[]crowd{{5000, enough + 1}}, false},
		"over at once":              {[]crowd{{5000, haste - 1}}, false},
		"few among many that are":   {[]crowd{{200, 20 * ms}, {1000, ms}, {200, 20 * ms}}, false},
		"few among patient callers": {[]crowd{{2000, time.Second}, {600, 20 * ms}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := New(Config{MaxCalls: 100_000})
				l := &g.line
				l.open.Store(true) // so that this test gives the turns
				l.working = mostRoom
				time.Sleep(2 * settle)
				for _, some := range c.crowds {
					for range some.calls * runtime.GOMAXPROCS(0) {
						g.Enter(nil)
						p := &place{Call: Call{Deadline: time.Now().Add(some.patience)}, patience: some.patience, turn: make(chan Turn, 1)}
						if _, now := l.enter(p); now {
							t.Fatal("a call goes on that should wait")
						}
					}
				}
				if g.Limited() != c.swamped {
					t.Fatalf("%d calls wait: %+v, want less let in: %v", len(l.calls), g.Stats(), c.swamped)
				}
				for i := 0; i < 50 && c.swamped; i++ { // so long without a turn
					time.Sleep(2 * settle)
					g.Enter(nil)
					l.enter(&place{Call: Call{Deadline: time.Now().Add(haste)}, patience: haste, turn: make(chan Turn, 1)})
				}
				if limit := g.Stats().Limit; c.swamped && limit != 2*workers {
					t.Errorf("without a turn the limit falls to %d, want %d", limit, 2*workers)
				}
			})
		})
	}
}

// TestStarved: where so many are answered by policy that nobody has had the time to be decided for a while, fewer are read, and there
// is room for fewer, until somebody has.
func TestStarved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MaxCalls: 1000})
		l := &g.line
		l.room, l.took, l.patient, l.fed = 500, 6*ms, 20*ms, time.Now()
		for range 500 {
			g.Enter(nil)
		}
		busy := func(turns int, lap time.Duration) (all string) {
			l.lap, l.working = lap, 0
			for range turns {
				time.Sleep(lap)
				p := enter(l, Call{Deadline: time.Now().Add(19 * ms)})
				l.turns(time.Now(), lap, 0)
				all += string(verdict(p))
			}
			return all
		}
		for _, tt := range []struct {
			turns int
			lap   time.Duration
			want  string
			room  int
			fewer bool
		}{
			{5, 2 * ms, "ggggg", 500, false},
			{3, 6 * ms, "lll", 500, false},
			{2, 6 * ms, "ll", 382, true},
			{2, 2 * ms, "gg", 382, true},
			{3, 6 * ms, "lll", 382, true},
		} {
			got := busy(tt.turns, tt.lap)
			if got != tt.want || l.room != tt.room || g.Limited() != tt.fewer {
				t.Errorf("%d turns after %v each: %s, want %s; room for %d, want %d; limited: %v", tt.turns, tt.lap, got, tt.want, l.room, tt.room, g.Limited())
			}
		}
	})
}

// TestManyGiveUp: those for whom there is no time make room for others at once, many at a time.
func TestManyGiveUp(t *testing.T) {
	t.Parallel()
	g := New(Config{MaxCalls: 1000})
	g.line.took, g.line.patient = 20*ms, enough // so that there is time for a policy, on a busy machine too, but not for a decision
	var late atomic.Int64
	var wg sync.WaitGroup
	for domain := range uint32(64) {
		wg.Go(func() {
			for range 200 {
				c := Call{Domain: domain, Cheap: domain%2 > 0, Size: 10, Waited: time.Minute, Deadline: time.Now().Add(10 * ms)}
				turn := g.Wait(c)
				g.Done(turn, false)
				if turn.Verdict == Late {
					late.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if late.Load() == 0 {
		t.Error("there was time for all of them")
	}
	if testkit.Eventually(t, "nobody waits", func() bool { return g.Free(0) }); g.line.bytes != 0 {
		t.Errorf("%d bytes of those that have gone", g.line.bytes)
	}
}

// TestPatience: callers that wait for ever do not have others wait longer, nor take room from them.
func TestPatience(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MaxCalls: 1000})
		for range 100 {
			now := time.Now()
			turn := g.line.wait(Call{Waited: time.Second, Deadline: now.Add(1<<63 - 1)})
			g.Done(turn, false)
			synctest.Wait()
		}
		if got := g.line.brisk(); got < 5*ms || got > 6*ms {
			t.Errorf("calls may take %s, want about 6 ms", got)
		}
		for range 100 {
			turn := g.line.wait(Call{Waited: 2 * ms, Deadline: time.Now().Add(18 * ms)})
			g.Done(turn, false)
			synctest.Wait()
		}
		if got := g.line.brisk(); got > 7*ms/2 {
			t.Errorf("a hundred calls of 20 ms later they may take %s, want about 3 ms", got)
		}
	})
}

// TestBytes: there is a bound on the messages of those that wait.
func TestBytes(t *testing.T) {
	t.Parallel()
	g := New(Config{MaxCalls: 1000})
	l, now := &g.line, time.Now()
	l.room = 0
	g.shares.add(0, 0, 1)
	enter(l, Call{Deadline: now.Add(time.Hour), Size: mostBytes + 1})
	if turn := l.wait(Call{Deadline: now.Add(time.Hour)}); turn.Verdict != Late {
		t.Errorf("with too many bytes a call has the turn %+v", turn)
	}
	l.room = 1
	l.turns(now, 0, 0)
	if l.bytes != 0 {
		t.Errorf("%d bytes are left when nobody waits", l.bytes)
	}
}
