package overload

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestNewestFirst: in an overload those go on for which there is room, the newest first, and those of domains that have had less than their
// share before.
func TestNewestFirst(t *testing.T) {
	t.Parallel()
	g := New(Config{MaxCalls: 1000})
	l, now := &g.line, time.Now()
	l.room, l.rushed, l.changed, l.lately = 4, true, now, lately{begun: now}
	g.shares.add(0, 1, 1000)
	var all []*place
	for _, domain := range []uint32{1, 1, 2, 1, 1, 1, 1, 2, 1} {
		p := enter(l, Call{Domain: domain, Deadline: now.Add(20 * ms)})
		p.patience = 20 * ms
		all = append(all, p)
	}
	l.turns(now, 0, 0)
	if got := verdicts(all); got != "--g---ggg" {
		t.Errorf("of domains 112111121 with room for 4: %s", got)
	}
	if more, full := l.turns(now, 0, 0); !more || !full {
		t.Errorf("without room: more is %v and full %v", more, full)
	}
	l.room = 100
	l.turns(now, 0, 0)
	if got := verdicts(all); got != "gg-ggg---" {
		t.Errorf("with room for all: %s", got)
	}
	if more, _ := l.turns(now, 0, 0); more || !g.Free(0) {
		t.Error("the line is open though nobody waits")
	}
}

// TestInOrder: as long as there is time for all, the oldest go first. In an overload those of patient callers still do, unless they have
// waited for most of what they can; they take no more turns than if the newest went first.
func TestInOrder(t *testing.T) {
	t.Parallel()
	type caller struct{ patience, left time.Duration }
	callers := map[rune]caller{
		's': {20 * ms, 15 * ms},
		'p': {100 * ms, 60 * ms},
		'o': {100 * ms, 20 * ms},
		'h': {time.Hour, time.Hour - time.Second},
		'f': {forever, 1<<63 - 1},
	}
	for _, tt := range []struct {
		name, calls string
		rushed      bool
		room        int
		want        string
	}{
		{"impatient callers", "ssss", false, 2, "gg--"},
		{"impatient callers", "ssss", true, 2, "--gg"},
		{"patient callers", "pppp", false, 3, "ggg-"},
		{"patient callers", "pppp", true, 3, "ggg-"},
		{"those who have waited for long", "ooop", true, 2, "--gg"},
		{"those who have waited for long, with room for all", "oopp", true, 4, "gggg"},
		{"both, and a patient one came last", "spspsp", false, 2, "gg----"},
		{"both, and a patient one came last", "spspsp", true, 4, "-gggg-"},
		{"a crowd of patient ones", "ppppppss", false, 4, "gg----gg"},
		{"a crowd of patient ones", "ppppppss", true, 4, "gg----gg"},
		{"a crowd of those with an hour", "hhhhhhpp", false, 4, "gg----gg"},
		{"a crowd of those with an hour, of whom one has a turn all the same", "hhhhhhpp", true, 2, "g-----gg"},
		{"one who is patient, before a crowd of others", "pssss", false, 2, "ggg--"},
		{"one who is not, before a crowd of patient callers", "spppp", false, 2, "ggg--"},
		{"those who wait for ever", "ffff", true, 2, "gg--"},
		{"no room", "spf", false, 0, "---"},
		{"room for all", "sphsph", true, 9, "gggggg"},
	} {
		g := New(Config{MaxCalls: 1000})
		l, now := &g.line, time.Now()
		l.room, l.rushed, l.changed, l.lately = tt.room, tt.rushed, now, lately{begun: now}
		g.shares.add(0, 0, 1)
		var all []*place
		for _, kind := range tt.calls {
			p := enter(l, Call{Deadline: now.Add(callers[kind].left)})
			p.patience = callers[kind].patience
			all = append(all, p)
		}
		l.turns(now, 0, 0)
		if got := verdicts(all); got != tt.want {
			t.Errorf("%s, in an overload: %v, %s with room for %d: %s, want %s", tt.name, tt.rushed, tt.calls, tt.room, got, tt.want)
		}
	}
}

// laps plays laps of 2 ms, in each of which calls come to l and then those that wait have a turn; who has one is done at once. It
// returns how many calls of each of the kinds were dismissed without waiting, and how many went on.
func laps(l *line, n, room int, kinds ...arrivals) (atOnce, went []int) {
	atOnce, went = make([]int, len(kinds)), make([]int, len(kinds))
	var mu sync.Mutex
	for range n {
		for i, k := range kinds {
			for range k.calls {
				go func() {
					came := time.Now()
					turn := l.wait(Call{Domain: k.domain, Deadline: came.Add(k.patience)})
					l.gate.Done(turn, false)
					mu.Lock()
					defer mu.Unlock()
					if turn.Verdict == Go {
						went[i]++
					} else if time.Since(came) == 0 {
						atOnce[i]++
					}
				}()
			}
			synctest.Wait()
		}
		lap(l, room)
	}
	return atOnce, went
}

// lap gives l a turn with so much room, 2 ms later.
func lap(l *line, room int) {
	time.Sleep(2 * ms)
	l.mu.Lock()
	l.room = room
	l.mu.Unlock()
	l.turns(time.Now(), 2*ms, 0)
	synctest.Wait()
}

// arrivals are calls that come in a lap.
type arrivals struct {
	domain   uint32
	calls    int
	patience time.Duration
}

// TestExcess: where there has been a line for longer than callers wait, those for whom there is no turn soon are dismissed at once.
// Those of patient callers are not, nor those of a domain that takes less than its share; and where each turn had room for all, a
// burst may wait.
func TestExcess(t *testing.T) {
	t.Parallel()
	const short = 20 * ms
	for _, tt := range []struct {
		name            string
		before          int // laps
		beforeRoom      int
		first, then     []arrivals
		atOnce, decided []int // of those that come then, in ten laps with room for 40: at least
		none            bool  // nobody is dismissed at once
	}{
		{
			name: "a standing line", before: 13, beforeRoom: 40,
			first: []arrivals{{1, 100, short}}, then: []arrivals{{1, 100, short}}, atOnce: []int{500}, decided: []int{380},
		},
		{name: "a new one", then: []arrivals{{1, 100, time.Second}}, atOnce: []int{0}, decided: []int{390}, none: true},
		{
			name: "a burst where there was room for all", before: 50, beforeRoom: 400,
			first: []arrivals{{1, 8, short}}, then: []arrivals{{1, 40, short}}, atOnce: []int{0}, decided: []int{390}, none: true,
		},
		{
			name: "beside patient callers", before: 50, beforeRoom: 40,
			first: []arrivals{{1, 40, time.Minute}, {1, 20, short}}, then: []arrivals{{1, 40, time.Minute}, {1, 20, short}},
			atOnce: []int{0, 0}, decided: []int{0, 190}, none: true, // of the patient ones, those go on that came before
		},
		{
			name: "callers with time for many turns", before: 130, beforeRoom: 40,
			first: []arrivals{{1, 41, 250 * ms}}, then: []arrivals{{1, 41, 250 * ms}}, atOnce: []int{0}, decided: []int{390}, none: true,
		},
		{
			name: "a domain that takes less", before: 11, beforeRoom: 40,
			first: []arrivals{{1, 100, short}, {2, 5, short}}, then: []arrivals{{1, 100, short}, {2, 5, short}},
			atOnce: []int{400, 0}, decided: []int{300, 45},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := New(Config{MaxCalls: 10_000})
				l := &g.line
				l.open.Store(true) // so that this test gives the turns
				l.opened, l.fed, l.floored = time.Now(), time.Now(), time.Now()
				laps(l, tt.before, tt.beforeRoom, tt.first...)
				atOnce, went := laps(l, 10, 40, tt.then...)
				for i := range tt.then {
					if atOnce[i] < tt.atOnce[i] || tt.none && atOnce[i] > 0 || went[i] < tt.decided[i] {
						t.Errorf("of %+v %d were dismissed at once, and %d decided, want %d and %d", tt.then[i], atOnce[i], went[i], tt.atOnce[i], tt.decided[i])
					}
				}
				for len(l.calls) > 0 { // so that nobody is left
					time.Sleep(time.Minute)
					l.turns(time.Now(), 0, 0)
				}
				synctest.Wait()
			})
		})
	}
}

// TestJudge: there is not time for all once there was none for several calls, and one for 16 that went on, that had time for a decision
// when they came or were passed over; and there is again when they are fewer. After some seconds it is tried in any case.
func TestJudge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MaxCalls: 1000})
		l := &g.line
		l.open.Store(true)
		went := func(n int) { // so many go on
			l.room, l.working = n, 0
			for range n {
				enter(l, Call{Deadline: time.Now().Add(20 * ms)}).patience = 20 * ms
			}
			l.turns(time.Now(), 0, 0)
		}
		late := func(n int, left, after time.Duration) { // so many come with so much time, and have no turn in it
			var all []*place
			time.Sleep(ms)
			for range n {
				p := enter(l, Call{Deadline: time.Now().Add(left)})
				p.patience = 20 * ms
				all = append(all, p)
			}
			time.Sleep(after)
			l.turns(time.Now(), 0, 0)
			for _, p := range all {
				if got := verdict(p); got != 'l' {
					t.Fatalf("%v before its caller gives up a call has the verdict %c", left-after, got)
				}
			}
		}
		again := func(rounds, n, pressed int) {
			for range rounds {
				went(n)
				late(pressed, 20*ms, 19*ms)
				time.Sleep(5 * ms)
			}
		}
		for _, tt := range []struct {
			what   string
			do     func()
			rushed bool
		}{
			{"at first", func() {}, false},
			{"with messages that came late", func() { late(100, 3*ms/2, 0) }, false},
			{"with some that were passed over", func() { late(few, 20*ms, 19*ms) }, false},
			{"with few among many", func() { time.Sleep(period); went(1000); late(60, 20*ms, 19*ms) }, false},
			{"with more", func() { late(20, 20*ms, 19*ms) }, true},
			{"while they are a tenth", func() { again(20, 400, 40) }, true},
			{"when they are a twentieth", func() { again(12, 400, 20) }, false},
			{"passed over with little time", func() { time.Sleep(2 * period); went(1); late(few+1, 3*ms, 2*ms) }, true},
			{"all the while", func() { again(100, 100, 50) }, true},
			{"after some seconds", func() {
				time.Sleep(retry)
				l.judge(time.Now())
			}, false},
		} {
			if tt.do(); l.rushed != tt.rushed {
				t.Errorf("%s: not time for all: %v, want %v (%+v)", tt.what, l.rushed, tt.rushed, l.lately)
			}
		}
	})
}

// TestCameBefore: those who have waited while the newest went first say nothing of whether there is time for all in order.
func TestCameBefore(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := &line{changed: now.Add(-10 * ms)}
	for came, want := range map[time.Duration]int{-11 * ms: 0, -9 * ms: 1} {
		l.lately = lately{}
		l.press(&place{Call: Call{Deadline: now.Add(5 * ms)}, came: now.Add(came)}, now, ms)
		if l.lately.pressed != want {
			t.Errorf("a call that came %v after the line was put in order: %d pressed, want %d", came+10*ms, l.lately.pressed, want)
		}
	}
}

// TestLimitHeals: the limit of calls in progress is what it was once nobody has been dismissed for a second, although some always wait.
func TestLimitHeals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{MaxCalls: 1000})
		l := &g.line
		g.limit.Store(500)
		l.passed = time.Now()
		for lap := range 220 {
			for len(l.calls) < 20 {
				enter(l, Call{Deadline: time.Now().Add(time.Second)}).patience = time.Second
			}
			l.room, l.working = 10, 0
			l.turns(time.Now(), 5*ms, 0)
			if g.limit.Load() == 1000 != (lap > 200) {
				t.Fatalf("the limit is %d after %v", g.limit.Load(), time.Since(l.passed))
			}
			time.Sleep(5 * ms)
		}
	})
}

// TestRoomForAll: who comes once all have gone on needs no turn; but does where some were dismissed, or are not read.
func TestRoomForAll(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		what  string
		room  int
		lefts []time.Duration
		limit int64
		open  bool
	}{
		{"with room for all", 3, []time.Duration{20 * ms, 20 * ms, 20 * ms}, 1000, false},
		{"without", 2, []time.Duration{20 * ms, 20 * ms, 20 * ms}, 1000, true},
		{"where one was dismissed", 3, []time.Duration{20 * ms, ms, 20 * ms}, 1000, true},
		{"where others are not read", 3, []time.Duration{20 * ms, 20 * ms, 20 * ms}, 500, true},
		{"where another domain takes less, whose calls go first", 3, []time.Duration{20 * ms, 20 * ms, 20 * ms}, 1000, true},
		{"where turns are handed out a portion at a time", 3, []time.Duration{20 * ms, 20 * ms, 20 * ms}, 1000, true},
	} {
		g := New(Config{MaxCalls: 1000})
		l, now := &g.line, time.Now()
		l.room = tt.room
		g.limit.Store(tt.limit)
		g.cut.Store(g.now())
		l.paced.Store(strings.Contains(tt.what, "portion"))
		if strings.Contains(tt.what, "another domain") {
			g.shares.add(0, 1, 100)
		}
		for _, left := range tt.lefts {
			enter(l, Call{Deadline: now.Add(left)})
		}
		if more, _ := l.turns(now, ms, 0); more != tt.open || g.Free(0) == tt.open {
			t.Errorf("%s: there are more turns: %v, a call goes on at once: %v; want %v and %v", tt.what, more, g.Free(0), tt.open, !tt.open)
		}
	}
}

// TestStands: there is no line that stands where there is time for all, nor for patient callers, nor for those of connections with
// several domains.
func TestStands(t *testing.T) {
	t.Parallel()
	now, mixed := time.Now(), new(Client)
	mixed.mixed.Store(1)
	for _, tt := range []struct {
		patience time.Duration
		client   *Client
		rushed   bool
		want     bool
	}{
		{20 * ms, nil, true, true},
		{20 * ms, nil, false, false},
		{enough, nil, true, true},
		{enough + 1, nil, true, false},
		{2 * time.Minute, nil, true, false},
		{20 * ms, new(Client), true, true},
		{20 * ms, mixed, true, false},
	} {
		l := &line{opened: now.Add(-time.Minute), rushed: tt.rushed}
		if got := l.stands(&place{Call: Call{Client: tt.client}, patience: tt.patience}, now); got != tt.want {
			t.Errorf("for a caller with %v, of a mixed connection: %v, in a rush: %v, it stands: %v, want %v", tt.patience, tt.client == mixed, tt.rushed, got, tt.want)
		}
	}
}

// TestAskAgain: where callers ask again as soon as they are answered, and there is time for each of them, all are decided, although there
// are always more than there is room for.
func TestAskAgain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		callers  int
		patience time.Duration
	}{
		{200, 20 * ms},
		{1200, 100 * ms},
		{1200, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := New(Config{MaxCalls: 10_000})
			l := &g.line
			l.open.Store(true) // so that this test gives the turns
			l.opened, l.fed, l.floored = time.Now(), time.Now(), time.Now()
			var stop atomic.Bool
			var asking, decided, dismissed atomic.Int64
			asking.Store(int64(tt.callers))
			for range tt.callers {
				go func() {
					defer asking.Add(-1)
					for !stop.Load() {
						turn := l.wait(Call{Deadline: time.Now().Add(tt.patience)})
						g.Done(turn, false)
						if turn.Verdict == Go {
							decided.Add(1)
						} else {
							dismissed.Add(1)
							time.Sleep(ms)
						}
					}
				}()
			}
			const laps, room = 500, 40
			for n := 0; asking.Load() > 0; n++ {
				stop.Store(n >= laps)
				lap(l, room)
			}
			if dismissed.Load() > 0 || decided.Load() < laps*room {
				t.Errorf("of %d callers with %v: %d calls were decided, and %d dismissed", tt.callers, tt.patience, decided.Load(), dismissed.Load())
			}
		})
	}
}

// TestKind: there is a kind for whatever patience a place may have.
func TestKind(t *testing.T) {
	t.Parallel()
	for patience, want := range map[time.Duration]int{
		0: 0, enough: 0, enough + 1: 1, 2 * enough: 1, 2*enough + 1: 2, 100 * ms: 2, time.Second: 5, 2 * forever: kinds - 2,
	} {
		if got := kind(&place{patience: patience}); got != want {
			t.Errorf("of %v: kind %d, want %d", patience, got, want)
		}
	}
}

// TestLowest: where many calls go on, as many are let in as do in a third of the time that callers have; and when fewer do, that is believed
// slowly.
func TestLowest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &New(Config{MaxCalls: 1000}).line
		l.patient = 30 * ms
		l.flow.begun = time.Now()
		pass := func(calls int) int {
			for range calls {
				l.admit(&place{}, time.Now())
			}
			time.Sleep(starved)
			l.flow.measure(time.Now())
			return l.lowest()
		}
		if n := pass(10); n != firstRoom {
			t.Errorf("%d are let in though few go on, want the room, %d", n, firstRoom)
		}
		if n := pass(200); n != 100 {
			t.Errorf("of 10 in a millisecond %d are let in, want 100", n)
		}
		if n := pass(0); n != 87 {
			t.Errorf("when none went on for a moment %d are let in, want 87", n)
		}
		l.flow.measure(time.Now())
		if n := l.lowest(); n != 87 {
			t.Errorf("without anything new %d are let in, want 87", n)
		}
		l.gate.limit.Store(70)
		if n := l.lowest(); n != 70 {
			t.Errorf("where no more than 70 are let in, at least %d are", n)
		}
		l.gate.limit.Store(1000)
		time.Sleep(2 * healed)
		if n := pass(10); n != firstRoom {
			t.Errorf("in another surge %d are let in, want the room, %d", n, firstRoom)
		}
		if pass(200); l.lowest() != 100 {
			t.Fatalf("%d are let in, want 100", l.lowest())
		}
		for name, lower := range map[string]func(){
			"too many answers":         func() { l.credit[1] = -debt - 1; l.account(time.Now(), false) },
			"no time for any decision": func() { l.starve(time.Now()) },
		} {
			time.Sleep(2 * settle)
			l.gate.limit.Store(200)
			if lower(); l.gate.limit.Load() != 100 {
				t.Errorf("%s: the limit is %d, want 100", name, l.gate.limit.Load())
			}
		}
	})
}
