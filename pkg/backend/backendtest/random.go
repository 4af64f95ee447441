package backendtest

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	"github.com/ratelimitd/ratelimitd/pkg/engine/enginetest"
)

// testRandom runs random sequences: for each algorithm, for lists of any of them, and for all of these behind penalties. Within a
// sequence, rules change as in a reload, and the clock moves forward and back.
func testRandom(t *testing.T, h Harness) {
	s := open(t, h)
	t.Run("money", func(t *testing.T) { checkRandom(t, s, h, rulesInMoney) })
	if h.FixedWindows {
		t.Run("clock", func(t *testing.T) { checkRandom(t, s, h, rulesOfTheClock) })
		return
	}
	for a := range engine.Algorithms() {
		t.Run(a.String(), func(t *testing.T) { checkRandom(t, s, h, rulesOf(a)) })
	}
	t.Run("lists", func(t *testing.T) { checkRandom(t, s, h, rulesOfAny) })
	t.Run("penalties", func(t *testing.T) { checkRandom(t, s, h, rulesWithPenalties) })
}

func checkRandom(t *testing.T, s *subject, h Harness, draw func(*rapid.T) rules) {
	t.Helper()
	var sequences, ops, twinnedOps int
	rapid.Check(t, func(t *rapid.T) {
		g := &sequence{player: s.player(), rules: draw(t), keys: []backend.Key{s.key(), s.key(), s.key()}}
		if rapid.IntRange(0, 2).Draw(t, "one rule") == 0 { // so that remembered rejections are used
			g.limits, g.penalties = g.limits[:1], g.penalties[:1]
		}
		twinned := 0
		if g.reserves == nil && rapid.IntRange(0, 4).Draw(t, "with the twin") == 0 { // twins are slow, and do not support reservations
			twinned = 20
		}
		for i := range h.Calls {
			if i == twinned {
				g.twins = nil
			}
			if rapid.IntRange(0, 9).Draw(t, "go on") > 0 { // if false, rapid has shrunk the call away
				g.turn(t)
			}
		}
		sequences, ops, twinnedOps = sequences+1, ops+g.compared, twinnedOps+g.twinned
	})
	t.Logf("%d sequences, %d operations compared with the engine, %d of them with the twin", sequences, ops, twinnedOps)
}

// rules contains the rules from which a sequence draws at each call.
type rules struct {
	limits    []engine.Limits
	penalties []*engine.Penalty
	reserves  []*engine.Reserve // nil without reservations
}

// rulesOf draws rules with one limit of the given algorithm each, and one rule with a limit of any algorithm.
func rulesOf(a engine.Algorithm) func(*rapid.T) rules {
	return func(t *rapid.T) rules {
		l := enginetest.LimitOf(a).Draw(t, "limit")
		return rules{
			limits: []engine.Limits{
				{l},
				{l.Prepared()},
				{enginetest.Changed(l).Draw(t, "changed")},
				{enginetest.LimitOf(a).Draw(t, "another")},
				{enginetest.Limit().Draw(t, "any")},
			},
			penalties: []*engine.Penalty{nil},
		}
	}
}

// rulesOfTheClock draws rules with one clock-aligned fixed window that counts rejected hits.
func rulesOfTheClock(t *rapid.T) rules {
	r := rules{penalties: []*engine.Penalty{nil}}
	for _, name := range []string{"limit", "changed", "another"} {
		l := enginetest.LimitOf(engine.FixedWindow).Draw(t, name)
		l.Align, l.CountRefused, l.Listed = engine.AlignClock, true, false
		r.limits = append(r.limits, engine.Limits{l}, engine.Limits{l.Prepared()})
	}
	return r
}

// rulesInMoney draws rules with a large number each, for counters that memcached also supports.
func rulesInMoney(t *rapid.T) rules {
	r := rulesOfTheClock(t)
	for i := range r.limits {
		r.limits[i][0].Hits = rapid.SampledFrom(numbersInMoney()).Draw(t, "hits")
	}
	return r
}

// rulesOfAny draws rules with one or several limits. One rule is a changed version of another.
func rulesOfAny(t *rapid.T) rules {
	l := enginetest.Limits().Draw(t, "limits")
	changed := make(engine.Limits, len(l))
	for i := range l {
		changed[i] = enginetest.Changed(l[i]).Draw(t, "changed")
		changed[i].CountRefused = changed[i].CountRefused && len(l) == 1
	}
	return rules{
		limits:    []engine.Limits{l, changed, enginetest.Limits().Draw(t, "others")},
		penalties: []*engine.Penalty{nil},
	}
}

// rulesWithPenalties draws rules, most of them with a penalty.
func rulesWithPenalties(t *rapid.T) rules {
	r := rulesOfAny(t)
	p, q := enginetest.Penalty().Draw(t, "penalty"), enginetest.Penalty().Draw(t, "another")
	r.penalties = []*engine.Penalty{p, p, q, nil}
	return r
}

// sequence is a running random sequence.
type sequence struct {
	*player
	rules
	keys    []backend.Key
	windows []int64 // windows of the decisions so far
}

// turn moves the clock and makes one call, mostly with one op.
func (g *sequence) turn(t *rapid.T) {
	limits := rapid.SampledFrom(g.limits).Draw(t, "limits")
	g.move(enginetest.Later(limits).Draw(t, "later"))
	if rapid.IntRange(0, 30).Draw(t, "pause") == 30 {
		g.move(400 * limits[0].Window)
	}
	ops := make([]backend.Op, rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "ops"))
	for i := range ops {
		ops[i] = g.draw(t)
	}
	g.apply(t, ops...)
	for i := range ops {
		g.windows = append(g.windows, ops[i].Decision.Window)
	}
}

// move moves the clock forward, by at most 50 years in total, or back, but not to a time before the expiry of a state that the store may
// have dropped.
func (g *sequence) move(by engine.Micros) {
	to := g.now + by
	if by < 0 && g.fixed {
		return
	}
	if by < 0 {
		to = max(to, g.oracle.lastExpiry(g.now))
	}
	if to < start+50*365*day {
		g.now = to
	}
}

// modes returns the modes to draw from; takes are the most frequent.
func modes() []backend.Mode {
	return []backend.Mode{
		backend.Take, backend.Take, backend.Take, backend.Take, backend.Peek, backend.Peek, backend.Refund, backend.Reset, backend.ForceReset,
	}
}

func (g *sequence) draw(t *rapid.T) backend.Op {
	op := backend.Op{
		Key:     rapid.SampledFrom(g.keys).Draw(t, "key"),
		Limits:  rapid.SampledFrom(g.limits).Draw(t, "limits"),
		Penalty: rapid.SampledFrom(g.penalties).Draw(t, "penalty"),
		Mode:    rapid.SampledFrom(modes()).Draw(t, "mode"),
	}
	op.Take = enginetest.Take(op.Limits).Draw(t, "take")
	if !merges(&op) {
		op.Take.Count = 1
	}
	if !leases(&op) {
		op.Take.Extra = 0
	}
	switch op.Mode {
	case backend.Refund:
		op.Take.Window = g.window(t)
	case backend.Reset, backend.ForceReset:
		op.Take = engine.Take{}
	case backend.Take, backend.Peek, backend.Settle:
	}
	if g.reserves != nil {
		g.reserve(t, &op)
	}
	return op
}

// window draws the window of a refund: the current one, one in which hits were consumed, or any other.
func (g *sequence) window(t *rapid.T) int64 {
	told := g.windows[max(0, len(g.windows)-8):]
	return rapid.SampledFrom(append([]int64{0, 0, int64(g.now), int64(g.now + day)}, told...)).Draw(t, "window")
}

// merges reports whether several requests may be merged into one take.
func merges(op *backend.Op) bool {
	for _, l := range op.Limits {
		if l.Algorithm.Queues() {
			return false
		}
	}
	return op.Penalty == nil && op.Take.Owner == ""
}

// leases reports whether a take may request hits in advance.
func leases(op *backend.Op) bool {
	return op.Mode == backend.Take && op.Penalty == nil && len(op.Limits) == 1 && op.Limits[0].Unleased() == ""
}
