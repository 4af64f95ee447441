package remote_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

const ms = time.Millisecond

// paced is a Pace of a simulated server that handles batches.
type paced struct {
	remote.Pace

	t   *testing.T
	now time.Time
}

// batches records n batches, one every few ms, each with least to most operations and the duration took.
func (p *paced) batches(n, least, most int, busy bool, took func(ops int) time.Duration) {
	for range n {
		ops := least + rand.IntN(most-least+1)
		end := p.now.Add(took(ops))
		p.Done(p.now, end, ops, busy)
		p.now = end.Add(ms)
	}
}

// expect checks the estimates of the base, within a sixth or 1.5 ms, and of a hundred operations, within a sixth or 3 ms.
func (p *paced) expect(what string, base, hundred time.Duration) {
	p.t.Helper()
	near := func(got, want, by time.Duration) bool { return (got - want).Abs() <= max(want/6, by) }
	if got := p.Estimate().Base(); !near(got, base, 3*ms/2) {
		p.t.Errorf("%s: the base is %v, want about %v", what, got, base)
	}
	if got := p.Estimate().Of(100); !near(got, hundred, 3*ms) {
		p.t.Errorf("%s: 100 operations take %v, want about %v", what, got, hundred)
	}
}

// TestPace checks that time independent of the number of operations is the base, and that the rest is attributed to operations.
func TestPace(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		least, most int
		busy        bool
		took        func(ops int) time.Duration
		way, each   time.Duration
	}{
		"a server far away":                    {1, 30, false, func(int) time.Duration { return 5 * ms }, 5 * ms, 0},
		"the same, and others always wait":     {1, 30, true, func(int) time.Duration { return 5 * ms }, 5 * ms, 0},
		"a slow server":                        {1, 30, true, func(n int) time.Duration { return time.Duration(n) * ms / 2 }, 0, ms / 2},
		"a slow server, and no one waits":      {1, 30, false, func(n int) time.Duration { return time.Duration(n) * ms / 2 }, 0, ms / 2},
		"one that is both":                     {1, 100, true, func(n int) time.Duration { return 3*ms + time.Duration(n)*ms/10 }, 3 * ms, ms / 10},
		"batches of one size":                  {20, 20, false, func(int) time.Duration { return 4 * ms }, 4 * ms, 0},
		"batches of one size, and others wait": {20, 20, true, func(int) time.Duration { return 4 * ms }, 4 * ms, 0},
		"one that is the quicker the more it does": {
			1, 30, true,
			func(n int) time.Duration { return 10*ms - time.Duration(n)*ms/10 }, 8450 * time.Microsecond, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := paced{t: t, now: time.Now()}
			p.batches(1, c.least, c.most, c.busy, c.took)
			if p.Estimate().Base() > ms || p.Estimate().Of(10) > ms {
				t.Errorf("after one batch the base is %v, and 10 operations take %v", p.Estimate().Base(), p.Estimate().Of(10))
			}
			p.batches(1000, c.least, c.most, c.busy, c.took)
			p.expect("all is known", c.way, 100*c.each)
		})
	}
}

// TestPaceUneven checks that varying answer times of a distant server do not suggest slow operations.
func TestPaceUneven(t *testing.T) {
	t.Parallel()
	p := paced{t: t, now: time.Now()}
	uneven := func(int) time.Duration { return 2*ms + rand.N(6*ms) }
	for range 50 {
		p.batches(100, 1, 20, true, uneven)
		if way, most := p.Estimate().Way(), p.Estimate().Way()+p.Estimate().Of(30); way < 2*ms || most > 12*ms {
			t.Errorf("answers after 2 to 8 ms are expected after %v, and those of 30 operations after %v", way, most)
		}
	}
}

// TestPaceChanges checks that one late answer is soon forgotten, and that changes of a server's speed are soon detected.
func TestPaceChanges(t *testing.T) {
	t.Parallel()
	p := paced{t: t, now: time.Now()}
	after := func(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }
	p.batches(200, 1, 30, false, after(ms))
	p.batches(1, 1, 30, false, after(time.Second))
	if base := p.Estimate().Base(); base > 2*ms {
		t.Errorf("after one late answer the base is %v", base)
	}
	begun := p.now
	for p.Estimate().Base() < 18*ms && p.now.Sub(begun) < time.Minute {
		p.batches(1, 1, 30, false, after(20*ms))
	}
	if took := p.now.Sub(begun); took > time.Second {
		t.Errorf("it was known after %v that the server is far away now", took)
	}
	if way := p.Estimate().Way(); way > 9*ms {
		t.Errorf("a server that was %v away a moment ago is taken to be %v away", ms, way)
	}
	begun = p.now
	for p.Estimate().Base() > 3*ms && p.now.Sub(begun) < time.Minute {
		p.batches(1, 1, 1, false, after(ms)) // one at a time, because all others are shed
	}
	if took := p.now.Sub(begun); took > time.Second {
		t.Errorf("it was known after %v that the server is near again", took)
	}
	base, hundred := p.Estimate().Base(), p.Estimate().Of(100)
	p.Done(p.now, p.now, 16, true)
	p.Done(p.now, p.now.Add(time.Second), 0, true)
	p.expect("what says nothing", base, hundred)
	p.Reset()
	p.expect("another server", 0, 0)
	if way := p.Estimate().Way(); way != 0 {
		t.Errorf("another server is %v away", way)
	}
}

// TestPaceSaturated checks that a busy server whose batches are all full, and so of one size, is not considered distant if it answered
// faster under less load, and that it is otherwise.
func TestPaceSaturated(t *testing.T) {
	t.Parallel()
	for idle, way := range map[time.Duration]time.Duration{ms / 5: ms / 5, 5 * ms: 5 * ms} {
		p := paced{t: t, now: time.Now()}
		p.batches(50, 1, 1, false, func(int) time.Duration { return idle })
		for begun := p.now; p.now.Sub(begun) < 3*time.Minute; {
			p.batches(100, 256, 256, true, func(int) time.Duration { return 5*ms + rand.N(ms) })
		}
		if got := p.Estimate().Way(); got > way+ms || got < way-ms {
			t.Errorf("answers came after %v when it was idle, and it is taken to be %v away", idle, got)
		}
		if all := p.Estimate().Base() + p.Estimate().Of(256); all < 4*ms || all > 7*ms {
			t.Errorf("batches that take 5 to 6 ms are expected to take %v", all)
		}
		if doubled := p.Estimate().Base() + p.Estimate().Of(512); idle < ms && doubled < 9*ms {
			t.Errorf("twice as much is expected to take %v", doubled)
		}
	}
}

// TestPaceAskedLess checks that shedding calls to a distant server, whose answer time is then unchanged, does not lead to more shedding.
func TestPaceAskedLess(t *testing.T) {
	t.Parallel()
	p := paced{t: t, now: time.Now()}
	for most := 64; most > 1; most /= 2 {
		p.batches(300, 1, most, true, func(int) time.Duration { return 5*ms + rand.N(ms) })
		if p.Estimate().Base() < 3*ms || p.Estimate().Base()+p.Estimate().Of(2*most) > 9*ms {
			t.Errorf("asked for up to %d operations it takes %v, and %v more for twice as many", most, p.Estimate().Base(), p.Estimate().Of(2*most))
		}
	}
}
