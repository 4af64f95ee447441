package backendtest

import (
	"math"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// testContract checks each sentence of the comments of package backend.
func testContract(t *testing.T, h Harness) {
	s := open(t, h)
	for _, c := range []struct {
		name string
		show func(*testing.T, *subject)
		all  bool // applies to all backends
	}{
		{"NoOps", noOps, true},
		{"OpsOfOneKeyInOrder", inOrder, true},
		{"OpsOfManyKeys", manyKeys, true},
		{"CountEqualsSoManyTakes", countEqualsTakes, true},
		{"ExtraIsNeverRejected", extra, true},
		{"ExtraAlone", extraAlone, false},
		{"LookLeavesNothing", lookLeavesNothing, false},
		{"GiveOnNothing", giveOnNothing, true},
		{"GiveNamesItsWindow", giveNamesItsWindow, true},
		{"GiveInAShorterWindow", giveInAShorterWindow, false},
		{"ListAdmitsTogether", listAdmitsTogether, false},
		{"WindowsOfBuckets", windowsOfBuckets, false},
		{"NumberChangesCountStays", numberChanges, true},
		{"WindowChangesCountStarts", windowChanges, true},
		{"ClockJumpsBack", clockJumpsBack, false},
		{"PenaltyEscalates", penaltyEscalates, false},
		{"PenaltyOverList", penaltyOverList, false},
		{"RejectsEverything", rejectsEverything, true},
		{"HugeNumbers", hugeNumbers, true},
		{"LargeLimits", largeLimits, true},
		{"FullCount", fullCount, true},
		{"InitialIsWrittenByATakeForNothing", initialWrittenForNothing, false},
		{"InitialIsWrittenByAGive", initialAndGiven, false},
	} {
		if h.FixedWindows && !c.all {
			continue
		}
		t.Run(c.name, func(t *testing.T) { c.show(t, s) })
	}
}

func noOps(t *testing.T, s *subject) {
	s.player().apply(t)
}

func inOrder(t *testing.T, s *subject) {
	c := counter(t, s, fixed(3, minute))
	op := func(m backend.Mode, cost uint64) backend.Op {
		return backend.Op{Key: c.key, Limits: c.limits, Mode: m, Take: engine.Take{Cost: cost, Count: 1}}
	}
	ops := []backend.Op{
		op(backend.Peek, 0), op(backend.Take, 1), op(backend.Take, 2), op(backend.Take, 1), op(backend.Refund, 2),
		op(backend.Take, 1), op(backend.Reset, 0), op(backend.Peek, 0),
	}
	c.p.apply(t, ops...)
	got := make([]uint64, len(ops))
	for i := range ops {
		got[i] = ops[i].Decision.Left
	}
	for i, want := range []uint64{3, 3, 2, 0} { // for this rule, the rejected hit counts
		is(c, "what is left", got[i], want)
	}
	is(c, "what is left at last", got[len(got)-1], 3)
}

func manyKeys(t *testing.T, s *subject) {
	p := s.player()
	limits := engine.Limits{fixed(2, minute)}
	ops := make([]backend.Op, 128)
	for i := range ops {
		ops[i] = backend.Op{Key: s.key(), Limits: limits, Take: engine.Take{Cost: uint64(i % 4), Count: 1}}
	}
	for range 3 {
		p.apply(t, ops...)
	}
}

func countEqualsTakes(t *testing.T, s *subject) {
	merged, single := counter(t, s, fixed(10, minute)), counter(t, s, fixed(10, minute))
	d := merged.do(backend.Op{Take: engine.Take{Cost: 3, Count: 5}})
	is(merged, "how many were admitted", d.Admitted, 3)
	is(merged, "what was left before", d.Left, 10)
	single.spend(3, "✓✓✓✗✗")
	is(merged, "what is left", merged.looks(1, "✗").Left, single.looks(1, "✗").Left)
}

func extra(t *testing.T, s *subject) {
	c := counter(t, s, fixed(10, minute))
	d := c.do(backend.Op{Take: engine.Take{Cost: 1, Count: 2, Extra: 5}})
	is(c, "how many were admitted", d.Admitted, 7)
	d = c.do(backend.Op{Take: engine.Take{Cost: 1, Count: 2, Extra: 5}})
	is(c, "how many were admitted", d.Admitted, 3)
	c.looks(0, "✓") // exactly at the limit: the rejected extra hits do not count
	c.takes("✗")
	c.looks(0, "✗")
}

// extraAlone checks a take of only Extra hits, without a request that waits for an answer.
func extraAlone(t *testing.T, s *subject) {
	for _, l := range []engine.Limit{fixed(10, minute), bucket(10, minute, 10)} {
		c := counter(t, s, l)
		is(c, "how many were admitted", c.do(backend.Op{Take: engine.Take{Cost: 3, Extra: 2}}).Admitted, 2)
		is(c, "what is left", c.looks(1, "✓").Left, 4)
		is(c, "how many were admitted", c.do(backend.Op{Take: engine.Take{Cost: 1, Extra: 9}}).Admitted, 4)
		is(c, "what is left", c.looks(1, "✗").Left, 0)
	}
}

func lookLeavesNothing(t *testing.T, s *subject) {
	l := fixed(2, 10*second)
	l.Align = engine.AlignFirst
	c := counter(t, s, l)
	c.looks(1, "✓")
	c.looks(3, "✗")
	c.spend(0, "✓✓")
	c.at(9 * time.Second)
	is(c, "ResetAfter", c.takes("✓").ResetAfter, 10*time.Second) // the check did not begin the window
}

func giveOnNothing(t *testing.T, s *subject) {
	for _, l := range s.eachAlgorithm() {
		c := counter(t, s, l)
		c.gives(5)
		is(c, "what is left", c.looks(1, "✓").Left, 10)
		c.takes(yes(10) + no(1))
	}
}

func giveNamesItsWindow(t *testing.T, s *subject) {
	c := counter(t, s, fixed(10, minute))
	c.at(90 * time.Second)
	window := c.takes(yes(5)).Window
	is(c, "the window", window, int64(start+minute))
	give := backend.Op{Mode: backend.Refund, Take: engine.Take{Cost: 1, Count: 3, Window: window}}
	c.do(give)
	is(c, "what is left", c.looks(1, "✓").Left, 8)
	c.at(120 * time.Second)
	c.takes(yes(5))
	c.do(give)
	is(c, "what is left of the next window", c.looks(1, "✓").Left, 5)
}

// giveInAShorterWindow checks that refunding all hits of a shorter window keeps those that a longer window counts.
func giveInAShorterWindow(t *testing.T, s *subject) {
	short, long := engine.Limits{slidingLog(10, minute)}, engine.Limits{slidingLog(10, hour)}
	c := counter(t, s, short...)
	c.takes(yes(3))
	c.at(50 * time.Second)
	c.takes(yes(1))
	c.limits = long
	c.takes(yes(1))
	c.at(65 * time.Second)
	c.limits = short
	c.do(backend.Op{Mode: backend.Refund, Take: engine.Take{Cost: 1, Count: 2}})
	is(c, "what is left of the shorter window", c.looks(1, "✓").Left, 10)
	c.limits = long
	is(c, "what is left of the longer window", c.looks(1, "✓").Left, 7)
}

// listOf marks limits as the items of a list.
func listOf(limits ...engine.Limit) engine.Limits {
	for i := range limits {
		limits[i].Listed, limits[i].CountRefused = true, false
	}
	return limits
}

func listAdmitsTogether(t *testing.T, s *subject) {
	c := counter(t, s, listOf(bucket(10, second, 10), sliding(25, day, 10))...)
	for range 2 {
		d := c.takes(yes(10) + no(3))
		is(c, "the strictest", d.Strictest, 0)
		c.after(time.Second)
	}
	d := c.takes(yes(5) + no(3))
	is(c, "the strictest", d.Strictest, 1)
	is(c, "what is left", d.Left, 0)
	c.limits = c.limits[:1]
	is(c, "what is left of the first: a rejection spends nothing", c.looks(1, "✓").Left, 5)
}

func windowsOfBuckets(t *testing.T, s *subject) {
	short, long := bucket(10, minute, 10), bucket(10, hour, 10)
	c := counter(t, s, short)
	c.takes(yes(10))
	c.limits = engine.Limits{long}
	is(c, "the wait", c.looks(1, "✗").RetryAfter, time.Minute) // ten are spent; that minute brings less than a token now, but the short bucket would be full then
	c.limits = engine.Limits{short}
	c.after(30 * time.Second)
	is(c, "what is left: the other took nothing away and gave nothing back", c.looks(1, "✓").Left, 5)

	c = counter(t, s, listOf(short)...)
	c.takes(yes(10) + no(1))
	c.limits = listOf(long)
	c.takes(yes(10) + no(1)) // a list may contain two limits that differ only in their window
	c.limits = listOf(short, long)
	is(c, "the strictest", c.takes("✗").Strictest, 1)
}

func numberChanges(t *testing.T, s *subject) {
	c := counter(t, s, fixed(3, minute))
	c.takes(yes(3))
	c.limits = engine.Limits{fixed(5, minute)}
	c.takes("✓✓✗")
	c.limits = engine.Limits{fixed(2, minute)}
	c.takes("✗")
}

func windowChanges(t *testing.T, s *subject) {
	c := counter(t, s, fixed(3, minute))
	c.takes("✓✓✓✗")
	c.limits = engine.Limits{fixed(3, hour)}
	c.takes("✓✓✓✗")
	c.limits = engine.Limits{fixed(3, minute)}
	c.takes("✗")
}

func clockJumpsBack(t *testing.T, s *subject) {
	for _, l := range s.eachAlgorithm() {
		c := counter(t, s, l)
		c.at(30 * time.Minute)
		c.takes(yes(10) + no(1))
		c.at(-24 * time.Hour)
		d := c.takes("✗")
		longest := time.Minute
		if l.Precision > 0 { // for every rejection by a sliding window
			longest += time.Minute / time.Duration(l.Precision)
		}
		if d.RetryAfter > longest {
			t.Errorf("%+v: after the clock jumped back RetryAfter is %v", l, d.RetryAfter)
		}
		c.after(d.RetryAfter)
		c.takes("✓")
	}
}

func penaltyEscalates(t *testing.T, s *subject) {
	c := counter(t, s, fixed(1, second))
	c.penalty = &engine.Penalty{For: 10 * second, Max: 30 * second, On: engine.OnExceeded, Escalate: 2}
	for _, lasts := range []time.Duration{10, 20, 30, 30} {
		c.takes("✓✗")
		is(c, "the penalty", c.looks(1, "✗").Penalty, lasts*time.Second)
		c.after(lasts * time.Second)
	}
	c.after(31 * time.Second)
	c.takes("✓✗")
	is(c, "the penalty, long after the last", c.looks(1, "✗").Penalty, 10*time.Second)
}

func penaltyOverList(t *testing.T, s *subject) {
	c := counter(t, s, listOf(fixed(2, second), bucket(3, minute, 3))...)
	c.penalty = &engine.Penalty{For: minute, Max: minute, On: engine.OnExceeded, Escalate: 1}
	c.takes("✓✓✗")
	c.after(time.Minute - time.Microsecond)
	c.takes("✗")
	c.after(time.Microsecond)
	c.takes("✓")
}

func rejectsEverything(t *testing.T, s *subject) {
	for _, l := range s.eachAlgorithm() {
		l.Hits, l.Burst, l.Initial = 0, 0, 0
		c := counter(t, s, l)
		c.takes("✗✗")
		c.looks(1, "✗")
		c.gives(1)
		c.after(48 * time.Hour)
		c.takes("✗")
	}
}

func hugeNumbers(t *testing.T, s *subject) {
	for _, l := range s.hugeLimits() {
		c := counter(t, s, l)
		c.takes("✓")
		c.spend(math.MaxUint64, "✗✗")
		c.looks(math.MaxUint64, "✗")
		mark := admitted
		if l.CountRefused { // they exceed a count, and excess hits are never refunded
			mark = rejected
		}
		c.gives(math.MaxUint64)
		c.takes(mark)
		c.do(backend.Op{Mode: backend.Refund, Take: engine.Take{Cost: math.MaxUint64, Count: math.MaxUint64}})
		c.takes(mark)
	}
}

// largeLimits checks that limits above 32 bits are exact, for windows with more or fewer microseconds than that.
func largeLimits(t *testing.T, s *subject) {
	for _, hits := range numbersInMoney() {
		for _, window := range []engine.Micros{second, 30 * day, 1 << 48} {
			c := counter(t, s, fixed(hits, window))
			is(c, "what is left at first", c.looks(0, "✓").Left, hits)
			c.spend(hits-2, "✓")
			is(c, "what is left", c.takes("✓").Left, 2)
			c.takes("✓")
			c.spend(hits, "✗") // it counts, and the refunded hits do not
			is(c, "what is left", c.looks(0, "✗").Left, 0)
			c.gives(hits + 1)
			is(c, "what is left after a refund", c.looks(0, "✓").Left, 1)
			c.takes("✓✗")
			c.resets(false)
			c.spend(hits, "✓✗")
		}
	}
}

// numbersInMoney returns limits around 2^32, and the largest one.
func numbersInMoney() []uint64 {
	return []uint64{1<<32 - 1, 1 << 32, engine.MaxLimit - 1, engine.MaxLimit}
}

// fullCount checks that counts at 2^53 − 1 are not refunded: they may have lost hits, so a refund could open the window.
func fullCount(t *testing.T, s *subject) {
	c := counter(t, s, fixed(10, hour))
	c.do(backend.Op{Take: engine.Take{Cost: 1 << 52, Count: 3}})
	c.gives(1 << 52)
	c.gives(1 << 52)
	c.gives(engine.MaxHits)
	is(c, "what is left", c.looks(1, "✗").Left, 0)
	c.resets(false)
	c.spend(engine.MaxHits-1<<51, "✗")
	c.gives(engine.MaxHits - 1<<52)
	c.takes("✗")
	c.gives(1 << 52)
	c.takes("✓")
	c.after(2 * time.Hour)
	c.takes("✓")
}

// initialAndGiven checks that hits refunded to a new bucket that starts low are available to the next take.
func initialAndGiven(t *testing.T, s *subject) {
	l := bucket(10, second, 10)
	l.Initial = 0
	c := counter(t, s, l)
	c.gives(5)
	c.takes(yes(5) + no(1))
	c.after(2 * time.Second) // it has been full for a window
	c.gives(3)
	c.takes(yes(3) + no(1))
	c.after(3 * time.Second)
	c.gives(11)
	c.takes(yes(10) + no(1))
}

func initialWrittenForNothing(t *testing.T, s *subject) {
	l := bucket(1, second, 10)
	l.Initial = 0
	c := counter(t, s, l)
	c.looks(1, "✗")
	c.at(5 * time.Second)
	c.spend(0, "✗") // a take of cost 0 starts the bucket; backend.Peek does not
	c.at(10 * time.Second)
	c.takes(yes(5) + no(1))
}

// hugeLimits returns limits with the largest possible numbers, and those of eachAlgorithm.
func (s *subject) hugeLimits() []engine.Limit {
	all := append(s.eachAlgorithm(), fixed(engine.MaxLimit, 1<<48), fixed(engine.MaxLimit, second))
	if !s.fixed {
		all = append(all, bucket(math.MaxUint32, second, math.MaxUint32))
	}
	return all
}

// eachAlgorithm returns a limit of ten hits for each algorithm that the backend supports. Rejected hits count only if the backend
// requires it.
func (s *subject) eachAlgorithm() []engine.Limit {
	f := fixed(10, minute)
	if s.fixed {
		return []engine.Limit{f}
	}
	f.CountRefused = false
	return []engine.Limit{f, sliding(10, minute, 10), slidingLog(10, minute), bucket(10, minute, 10), leaky(10, minute, 10), semaphore(10, minute)}
}
