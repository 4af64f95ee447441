package engine_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
	"github.com/ratelimitd/ratelimitd/pkg/engine/enginetest"
)

// counter holds the states of one descriptor, as a backend does.
type counter struct {
	limits  engine.Limits
	penalty *engine.Penalty
	reserve *engine.Reserve
	states  map[engine.Slot]*engine.State
}

func newCounter(l engine.Limits, p *engine.Penalty) *counter {
	return &counter{limits: l, penalty: p, states: map[engine.Slot]*engine.State{}}
}

func (c *counter) state(slot engine.Slot) *engine.State {
	if c.states[slot] == nil {
		c.states[slot] = new(engine.State)
	}
	return c.states[slot]
}

func (c *counter) all() []*engine.State {
	s := make([]*engine.State, len(c.limits))
	for i, l := range c.limits {
		s[i] = c.state(l.Slot())
	}
	return s
}

// open returns the state of reservations.
func (c *counter) open() *engine.State { return c.state(c.limits[0].Slot().Reserved()) }

func (c *counter) settle(now engine.Micros, t engine.Take) engine.Decision {
	return c.reserve.Settle(c.open(), c.limits, c.all(), now, t)
}

func (c *counter) take(now engine.Micros, t engine.Take) engine.Decision {
	if c.reserve != nil {
		return c.reserve.Take(c.open(), c.limits, c.all(), now, t)
	}
	if c.penalty != nil {
		return c.penalty.Take(c.state(engine.GateSlot), c.limits, c.all(), now, t)
	}
	return c.limits.Take(c.all(), now, t)
}

func (c *counter) look(now engine.Micros, t engine.Take) engine.Decision {
	if c.reserve != nil {
		return c.reserve.Peek(c.open(), c.limits, c.all(), now, t)
	}
	if c.penalty != nil {
		return c.penalty.Peek(c.state(engine.GateSlot), c.limits, c.all(), now, t)
	}
	return c.limits.Peek(c.all(), now, t)
}

func (c *counter) give(now engine.Micros, t engine.Take) engine.Decision {
	if c.reserve != nil {
		return c.reserve.Refund(c.open(), c.limits, c.all(), now, t)
	}
	if c.penalty != nil {
		return c.penalty.Refund(c.state(engine.GateSlot), c.limits, c.all(), now, t)
	}
	return c.limits.Refund(c.all(), now, t)
}

func (c *counter) reset(now engine.Micros, force bool) engine.Decision {
	if c.penalty != nil {
		return c.penalty.Reset(c.state(engine.GateSlot), c.limits, c.all(), now, force)
	}
	return c.limits.Reset(c.all(), now)
}

// sweep drops expired states, as a backend may at any time.
func (c *counter) sweep(now engine.Micros) {
	for slot, s := range c.states {
		if s.Empty() || s.Expires() <= min(now, 1<<52) { // the engine clamps times there, in 2112
			delete(c.states, slot)
		}
	}
}

// TestModel compares the engine with its twin on random calls, with limits that change and a clock that jumps.
func TestModel(t *testing.T) {
	for a := range engine.Algorithms() {
		t.Run(a.String(), rapid.MakeCheck(func(t *rapid.T) {
			compare(t, engine.Limits{enginetest.LimitOf(a).Draw(t, "limit")}, nil)
		}))
	}
	t.Run("list", rapid.MakeCheck(func(t *rapid.T) { compare(t, enginetest.Limits().Draw(t, "limits"), nil) }))
	t.Run("penalty", rapid.MakeCheck(func(t *rapid.T) {
		compare(t, enginetest.Limits().Draw(t, "limits"), enginetest.Penalty().Draw(t, "penalty"))
	}))
}

// both makes the same call to c and to its twin.
func both(c *counter, m *enginetest.Model, now engine.Micros, what string, k engine.Take) (got, want engine.Decision) {
	switch what {
	case "take":
		return c.take(now, k), m.Take(c.limits, c.penalty, now, k)
	case "look":
		k.Extra = 0
		return c.look(now, k), m.Peek(c.limits, c.penalty, now, k)
	case "give":
		return c.give(now, k), m.Refund(c.limits, c.penalty, now, k)
	case "reset":
		return c.reset(now, false), m.Reset(c.limits, c.penalty, now, false)
	}
	return c.reset(now, true), m.Reset(c.limits, c.penalty, now, true)
}

func compare(t *rapid.T, l engine.Limits, p *engine.Penalty) {
	var m enginetest.Model
	c := newCounter(l, p)
	now := enginetest.Start + engine.Micros(rapid.Int64Range(0, 3_000_000).Draw(t, "start"))
	var window int64
	steady := rapid.Bool().Draw(t, "steady clock")
	for range rapid.IntRange(1, 30).Draw(t, "calls") {
		later := enginetest.Later(c.limits).Draw(t, "later")
		if steady {
			later = max(later, 0)
		}
		now += later
		if steady && rapid.IntRange(0, 7).Draw(t, "sweep") == 0 {
			c.sweep(now)
		}
		if rapid.IntRange(0, 9).Draw(t, "change") == 0 {
			change(t, c)
		}
		k := enginetest.Take(c.limits).Draw(t, "take")
		what := rapid.SampledFrom([]string{"take", "take", "take", "take", "take", "look", "look", "give", "give", "reset", "force"}).Draw(t, "call")
		if rapid.Bool().Draw(t, "named window") {
			k.Window = window
		}
		got, want := both(c, &m, now, what, k)
		window = got.Window
		t.Logf("at %d %s %+v by %s: %+v", now-enginetest.Start, what, k, text(c.limits), got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("(-model +engine):\n%s", diff)
		}
	}
}

// change changes the numbers of one limit, as a reload of the rules or an override does.
func change(t *rapid.T, c *counter) {
	i := rapid.IntRange(0, len(c.limits)-1).Draw(t, "which")
	changed := append(engine.Limits{}, c.limits...)
	changed[i] = enginetest.Changed(c.limits[i]).Draw(t, "changed")
	if len(changed) > 1 {
		changed[i].CountRefused = false
	}
	if rapid.Bool().Draw(t, "prepared") {
		changed[i] = changed[i].Prepared()
	}
	if changed.Validate() == nil {
		c.limits = changed
	}
}

func text(l engine.Limits) string {
	s := ""
	for _, x := range l {
		if c := x.Calendar; c != nil {
			s += fmt.Sprintf("\n\tcalendar of %s, unit %d, %d of them,", c.Location(), c.Unit(), c.Every())
		}
		s += fmt.Sprintf("\n\t%s %d/%dµs burst %d debt %d initial %d step %d precision %d align %s count_refused %t",
			x.Algorithm, x.Hits, x.Window, x.Burst, x.Debt, x.Initial, x.FillInterval, x.Precision, engine.ParamAlign.Text(&x), x.CountRefused)
	}
	return s
}
