package proof

import (
	"slices"
	"testing"
)

const second Micros = 1_000_000

// zero is the start of tests, at the start of a minute and a day.
const zero = 20_000 * 86_400 * second

// take returns a call with n hits admitted at an exactly known time.
func take(at Micros, n int64, s *Setting) Call {
	return Call{Sent: zero + at, Done: zero + at, Hits: n, Outcome: Admitted, Under: []*Setting{s}}
}

func give(at Micros, n int64, s *Setting) Call {
	c := take(at, n, s)
	c.Kind = Refund
	return c
}

func wait(c Call, turn Micros) Call { c.Wait = turn; return c }

func by(owner string, c Call) Call { c.Owner = owner; return c }

func under(l Limit) *Setting { return &Setting{Name: "s", Limits: []Limit{l}} }

// within widens the interval of a call by t on both sides.
func within(c Call, t Micros) Call {
	c.Sent, c.Done = c.Sent-t, c.Done+t
	return c
}

// TestOneTooMany checks, for each bound, that a history at the bound proves nothing, and that one more hit is found, unless it
// may have been at another time or hits may have been refunded.
func TestOneTooMany(t *testing.T) {
	t.Parallel()
	fixed := under(Limit{Algorithm: FixedWindow, Hits: 5, Window: 10 * second})
	first := under(Limit{Algorithm: FixedWindow, Hits: 5, Window: 10 * second, First: true})
	day := under(Limit{Algorithm: FixedWindow, Hits: 5, Window: 86_400 * second, Calendar: Calendar{"day", "America/New_York"}})
	sliding := under(Limit{Algorithm: SlidingWindow, Hits: 5, Window: 10 * second, Precision: 10})
	log := under(Limit{Algorithm: SlidingLog, Hits: 5, Window: 10 * second})
	fast := under(Limit{Algorithm: SlidingLog, Hits: 100, Window: second})
	bucket := under(Limit{Algorithm: TokenBucket, Hits: 1, Window: second, Burst: 5, Initial: 5})
	steep := under(Limit{Algorithm: TokenBucket, Hits: 10, Window: second, Burst: 2, Initial: 2})
	debt := under(Limit{Algorithm: TokenBucket, Hits: 1, Window: second, Burst: 3, Initial: 3, Debt: 2})
	steps := under(Limit{Algorithm: TokenBucket, Hits: 2, Window: 4 * second, Burst: 3, Initial: 3, Fill: 2 * second})
	low := under(Limit{Algorithm: TokenBucket, Hits: 1, Window: second, Burst: 100, Initial: 5})
	hot := under(Limit{Algorithm: TokenBucket, Hits: 1, Window: second, Burst: 5, Initial: 5, Lease: 2})
	queue := under(Limit{Algorithm: LeakyBucket, Hits: 1, Window: second, Burst: 4})
	slots := under(Limit{Algorithm: Concurrency, Hits: 5, Window: 10 * second})
	short := under(Limit{Algorithm: Concurrency, Hits: 5, Window: second})
	list := &Setting{Name: "s", Limits: []Limit{
		{Algorithm: TokenBucket, Hits: 100, Window: second, Burst: 100, Initial: 100, Listed: true},
		{Algorithm: SlidingLog, Hits: 5, Window: 10 * second, Listed: true},
	}}
	for _, tt := range []struct {
		name  string
		calls []Call
		more  Call // exceeds the bound together with calls
	}{
		{"fixed window", []Call{take(0, 2, fixed), take(9*second, 3, fixed), take(10*second, 5, fixed)}, take(2*second, 1, fixed)},
		{"fixed window, second", []Call{take(9*second, 5, fixed), take(10*second, 5, fixed)}, take(19*second+999_999, 1, fixed)},
		{"calendar", []Call{take(4*3600*second-1, 5, day), take(4*3600*second, 5, day)}, take(28*3600*second-1, 1, day)}, // midnight in summer
		{"window from the first hit", []Call{take(7*second, 2, first), take(16*second, 3, first), take(17*second, 5, first)}, take(12*second, 1, first)},
		{"window from the first hit, second", []Call{take(7*second, 5, first), take(19*second, 5, first)}, take(28*second, 1, first)},
		{"sliding window", []Call{take(5*second, 3, sliding), take(14*second, 2, sliding)}, take(15*second-1, 1, sliding)},
		{"sliding log", []Call{take(5*second, 3, log), take(14*second, 2, log)}, take(15*second-1, 1, log)},
		{"log with a shorter window beside", []Call{take(5*second, 5, log), take(6*second, 90, fast)}, take(9*second, 1, log)},
		{"token bucket", []Call{take(0, 5, bucket), take(second, 1, bucket), take(2*second, 1, bucket)}, take(3*second-1, 1, bucket)},
		{"token bucket, two settings", []Call{
			take(0, 5, bucket), take(4*second/10, 1, steep), take(4*second/10, 3, bucket), take(8*second/10, 1, steep), take(8*second/10, 3, bucket),
		}, take(8*second/10, 1, bucket)},
		{"token bucket, settings that are not in use any more", []Call{take(0, 2, steep), take(second, 5, bucket), take(2*second, 1, bucket)}, take(2*second-1, 1, bucket)},
		{"debt", []Call{take(0, 5, debt), take(2*second, 2, debt)}, take(2*second, 1, debt)},
		{"steps", []Call{take(2*second-1, 3, steps), take(2*second, 1, steps)}, take(2*second+1, 1, steps)},
		{"initial tokens", []Call{take(0, 5, low), take(second, 1, low)}, take(second, 1, low)},
		{"leases", []Call{take(0, 17, hot)}, take(0, 1, hot)}, // 3 replicas with 2 leases of 2
		{"leaky bucket", []Call{wait(take(0, 4, queue), 0), wait(take(1, 1, queue), 4*second)}, wait(take(999_999, 1, queue), 5*second)},
		{"turns", []Call{wait(take(0, 1, queue), 0), wait(take(1, 1, queue), second), wait(take(2, 1, queue), 2*second)}, wait(take(3, 1, queue), 2*second)},
		{"slots", []Call{take(0, 3, slots), take(9*second, 2, slots), give(10*second, 1, slots), take(10*second+1, 4, slots)}, take(9*second+1, 1, slots)},
		{"slots with a shorter window beside", []Call{take(0, 3, slots), take(1, 2, short), take(second+1, 2, slots)}, take(10*second-1, 1, slots)},
		{"slots of owners", []Call{by("a", take(0, 3, slots)), by("b", take(1, 2, slots)), by("a", take(2, 3, slots)), by("b", give(3, 1, slots)), by("c", take(4, 1, slots))}, by("d", take(5, 1, slots))},
		{"list", []Call{take(0, 5, list)}, take(second, 1, list)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if all := Check(tt.calls, 3); len(all) > 0 {
				t.Fatalf("at the bound: %s: %+v", all[0].Promise, all[0].Worst)
			}
			calls := append(slices.Clone(tt.calls), tt.more)
			all := Check(calls, 3)
			if len(all) == 0 {
				t.Fatal("one more hit is not found")
			}
			if s := all[0].Shortest; s.Calls != len(all[0].Calls) || s.Calls < 2 || s.over() > 1.01 {
				t.Errorf("shortest history %+v, of %d calls", s, len(all[0].Calls))
			}
			for name, change := range map[string]func(c *Call){
				"sent before and answered after the rest": func(c *Call) { *c = within(*c, 1000*second) },
				"rejected":             func(c *Call) { c.Outcome = Rejected },
				"without an answer":    func(c *Call) { c.Outcome = Unanswered },
				"perhaps in other use": func(c *Call) { c.Under = append([]*Setting{under(Limit{Algorithm: "another"})}, c.Under...) },
			} {
				calls := append(slices.Clone(tt.calls), tt.more)
				change(&calls[len(calls)-1])
				if all := Check(calls, 3); len(all) > 0 {
					t.Errorf("accused although one call is %s: %s: %+v", name, all[0].Promise, all[0].Worst)
				}
			}
			if tt.calls[0].Under[0] == queue { // has no refunds
				return
			}
			for _, back := range []Outcome{Admitted, Unanswered} {
				c := within(by(tt.more.Owner, give(0, 1, tt.more.Under[0])), 200_000*second)
				c.Outcome = back
				if all := Check(append(slices.Clone(calls), c), 3); len(all) > 0 {
					t.Errorf("accused although a hit may have been refunded: %s: %+v", all[0].Promise, all[0].Worst)
				}
			}
		})
	}
}

// TestShortest checks that the shortest history contains only calls that prove the excess.
func TestShortest(t *testing.T) {
	t.Parallel()
	s := under(Limit{Algorithm: SlidingWindow, Hits: 3, Window: second, Precision: 1})
	var calls []Call
	for i := range Micros(10) {
		calls = append(calls, take(10*i*second, 3, s))
	}
	calls = append(calls, take(31*second, 1, s), take(31*second+second/2, 3, s), take(51*second, 2, s), take(51*second+1, 2, s), take(51*second+2, 2, s))
	all := Check(calls, 1)
	if len(all) != 1 {
		t.Fatalf("%d findings", len(all))
	}
	e := all[0]
	if len(e.Calls) != 2 || e.Calls[0].Sent != zero+51*second || e.Worst.Hits != 6 {
		t.Errorf("%+v, worst %+v", e.Shortest, e.Worst)
	}
}
