package nearcache_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/nearcache"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

func TestRejectionLastsASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, newStore(), nearcache.Config{}, bucket(3, hour))
		r.drain(3)
		d := r.takes(1, false, false)
		time.Sleep(999 * time.Millisecond)
		later := r.takes(1, false, false)
		if got := d.RetryAfter - later.RetryAfter; got != 999*time.Millisecond {
			t.Errorf("RetryAfter went down by %v in 999 ms", got)
		}
		if got := d.ResetAfter - later.ResetAfter; got != 999*time.Millisecond {
			t.Errorf("ResetAfter went down by %v in 999 ms", got)
		}
		time.Sleep(time.Millisecond)
		r.takes(1, false, true)
		r.takes(1, false, false)
		if s := r.Stats(); s.Rejections != 3 || s.Hits != 3 || s.Entries != 1 || s.Evictions != 0 {
			t.Errorf("counted %+v", s)
		}
	})
}

// TestLookDoesNotStart: a peek writes nothing, so the rejection of a peek at a new bucket must not keep a take from starting it.
func TestLookDoesNotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := bucket(1, 5*second)
		l.Initial = 0
		r := newReplica(t, newStore(), nearcache.Config{}, l)
		r.do(backend.Peek, 1, true)
		r.takes(1, false, true)
		r.do(backend.Peek, 1, false)
		time.Sleep(4999 * time.Millisecond)
		r.takes(1, false, true)
		time.Sleep(time.Millisecond)
		r.takes(1, true, true)
	})
}

// TestRejectionUntilT checks that the time for which a rejection is remembered begins before the store is asked, and that T is on the
// store's clock.
func TestRejectionUntilT(t *testing.T) {
	for _, longest := range []time.Duration{0, 1<<63 - 1} {
		synctest.Test(t, func(t *testing.T) {
			r := newReplica(t, newStore(), nearcache.Config{Rejection: longest}, bucket(5, second))
			r.drain(5)
			const drift = 40 * time.Microsecond
			time.Sleep(200*time.Millisecond - drift - time.Microsecond)
			r.takes(1, false, false)
			time.Sleep(time.Microsecond)
			r.do(backend.Peek, 1, true) // this clock may be slower than the store's
			time.Sleep(drift)
			r.takes(1, true, true)
		})
		synctest.Test(t, func(t *testing.T) {
			s := newStore()
			r := newReplica(t, s, nearcache.Config{Rejection: longest}, bucket(1, minute))
			r.takes(1, true, true)
			s.took = 300 * time.Millisecond
			r.takes(1, false, true)
			s.took = 0
			time.Sleep(700*time.Millisecond - time.Microsecond)
			r.takes(1, false, false)
			time.Sleep(time.Microsecond)
			r.takes(1, false, longest == 0)
		})
	}
}

// TestRejectedCrowd checks that many callers over their limit cost the store one call per second, even if answers are slow.
func TestRejectedCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		r := newReplica(t, s, nearcache.Config{}, window(3, hour))
		r.drain(3)
		s.delay(2 * time.Millisecond)
		before := s.count()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				ops := []backend.Op{{Key: keyOf(1), Limits: r.limits, Take: engine.Take{Cost: 1, Count: 1}}}
				for range 5000 {
					if r.Apply(t.Context(), ops); ops[0].Decision.Admitted != 0 || ops[0].Origin != backend.FromRejection && ops[0].Decision.RetryAfter == 0 {
						t.Errorf("a crowd over its limit was told %+v", ops[0])
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		wg.Wait()
		if n := s.count() - before; n > 5 {
			t.Errorf("the store was asked %d times in 5 s", n)
		}
	})
}

func TestRejectionOfCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, newStore(), nearcache.Config{}, bucket(10, hour))
		r.takes(8, true, true)
		r.takes(5, false, true)
		r.takes(5, false, false)
		r.do(backend.Peek, 5, false)
		if d := r.takes(11, false, false); d.RetryAfter != engine.Never {
			t.Errorf("a cost that can never pass may be repeated after %v, want never", d.RetryAfter)
		}
		r.takes(7, false, true) // has a longer wait
		r.takes(7, false, false)
		r.takes(1, true, true)
		r.do(backend.Peek, 0, true)
	})
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, newStore(), nearcache.Config{}, bucket(10, hour))
		for range 3 {
			r.takes(11, false, true) // can never be admitted
		}
		r.limits = engine.Limits{bucket(0, hour)}
		for range 3 {
			r.takes(1, false, true)
		}
	})
}

// TestRejectionTimesAreThoseOfTheCost checks that a rejection reports the time at which its own cost is admitted, not that of a smaller
// cost. On a fixed window, both are the same; otherwise, the store is asked. Hits admitted in between prolong the wait of rejected ops.
func TestRejectionTimesAreThoseOfTheCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, newStore(), nearcache.Config{}, engine.Limit{Algorithm: engine.SlidingLog, Hits: 3, Window: minute})
		is := func(d engine.Decision, want time.Duration) {
			t.Helper()
			if d.RetryAfter != want {
				t.Errorf("the cost passes after %v, want %v", d.RetryAfter, want)
			}
		}
		r.takes(1, true, true)
		time.Sleep(5 * time.Second)
		r.takes(1, true, true)
		time.Sleep(5 * time.Second)
		is(r.takes(2, false, true), 50*time.Second)
		is(r.takes(3, false, true), 55*time.Second)
		is(r.takes(3, false, false), 55*time.Second)
		r.takes(1, true, true)
		is(r.takes(3, false, true), 60*time.Second)
		is(r.takes(3, false, false), 60*time.Second)
		is(r.takes(1, false, true), 50*time.Second)
		is(r.takes(1, false, false), 50*time.Second)
		r.limits = engine.Limits{window(3, hour)}
		r.takes(2, true, true)
		r.takes(2, false, true)
		first := r.takes(2, false, false)
		is(r.takes(3, false, false), first.RetryAfter)
		r.penalty = &engine.Penalty{For: second, Max: second, Escalate: 1} // ends before the window
		r.takes(1, false, true)
		r.takes(2, false, true)
	})
}

// TestRejectionUntilEnd checks that, as in envoyproxy/ratelimit's local cache, the store is not asked again about a window overdrawn by
// rejected hits, whatever the cost, even if the limit is 0.
func TestRejectionUntilEnd(t *testing.T) {
	for _, limit := range []uint64{0, 10} {
		synctest.Test(t, func(t *testing.T) {
			r := newReplica(t, newStore(), nearcache.Config{Rejection: nearcache.UntilEnd}, window(limit, hour))
			first := r.takes(11, false, true)
			for range 3 {
				time.Sleep(time.Minute)
				r.takes(1, false, false)
				if d := r.takes(12, false, false); d.RetryAfter != engine.Never {
					t.Errorf("a cost that can never pass may be repeated after %v, want never", d.RetryAfter)
				}
			}
			rest := first.ResetAfter - 3*time.Minute
			want := rest
			if limit == 0 {
				want = engine.Never
			}
			if d := r.takes(5, false, false); d.RetryAfter != want || d.ResetAfter != rest {
				t.Errorf("again after %v, whole after %v, three minutes after %+v", d.RetryAfter, d.ResetAfter, first)
			}
			time.Sleep(rest)
			r.takes(1, limit > 0, true)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		l := window(10, hour)
		l.CountRefused = false
		r := newReplica(t, newStore(), nearcache.Config{Rejection: nearcache.UntilEnd}, l)
		for range 3 {
			r.takes(11, false, true) // can never be admitted, and counts nothing
		}
		r.takes(1, true, true)
	})
}

// TestRejectionEnds checks that operations of this replica end a remembered rejection immediately.
func TestRejectionEnds(t *testing.T) {
	for name, end := range map[string]func(r *replica){
		"Refund":   func(r *replica) { r.do(backend.Refund, 1, true) },
		"Reset":    func(r *replica) { r.do(backend.Reset, 0, true) },
		"Reload":   func(r *replica) { r.limits = engine.Limits{window(4, hour)} },
		"Override": func(r *replica) { r.limits = engine.Limits{window(9, hour)}; r.takes(1, true, true) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := window(3, hour)
				l.CountRefused = false
				r := newReplica(t, newStore(), nearcache.Config{}, l)
				r.drain(3)
				r.takes(1, false, false)
				end(r)
				r.takes(1, true, true)
			})
		})
	}
}

// TestOtherReplica checks that operations of another replica take effect within a second.
func TestOtherReplica(t *testing.T) {
	for name, end := range map[string]func(r *replica){
		"Refund": func(r *replica) { r.do(backend.Refund, 1, true) },
		"Reset":  func(r *replica) { r.do(backend.Reset, 0, true) },
		"Reload": func(r *replica) { r.limits = engine.Limits{window(9, hour)}; r.takes(1, true, true) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				a, b := newReplica(t, s, nearcache.Config{}, window(3, hour)), newReplica(t, s, nearcache.Config{}, window(3, hour))
				a.drain(3)
				b.limits = a.limits
				end(b)
				if name == "Reload" {
					a.takes(1, false, false)
					a.limits = b.limits // which reaches a a moment later
				} else {
					a.takes(1, false, false)
					b.do(backend.Refund, 2, true)
					time.Sleep(time.Second)
				}
				a.takes(1, true, true)
			})
		})
	}
}

// TestRejectionMeetsGive checks that a rejection that arrives during a refund is not remembered, whichever answer arrives first.
func TestRejectionMeetsGive(t *testing.T) {
	for _, gives := range []time.Duration{10 * time.Millisecond, 200 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			s := newStore()
			r := newReplica(t, s, nearcache.Config{}, bucket(1, hour))
			r.takes(1, true, true)
			var wg sync.WaitGroup
			ask := func(m backend.Mode, took time.Duration) {
				s.mu.Lock()
				s.took = took
				s.mu.Unlock()
				wg.Go(func() {
					r.Apply(t.Context(), []backend.Op{{Key: keyOf(1), Limits: r.limits, Mode: m, Take: engine.Take{Cost: 1, Count: 1}}})
				})
				time.Sleep(time.Millisecond)
			}
			ask(backend.Take, 100*time.Millisecond) // rejected, but the answer arrives after the refund has begun
			ask(backend.Refund, gives)
			wg.Wait()
			r.takes(1, true, true)
		})
	}
}

// TestRejectionOvertakesGive checks the same for a rejection that the store decided before the refund reached it.
func TestRejectionOvertakesGive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		r := newReplica(t, s, nearcache.Config{}, bucket(1, hour))
		r.takes(1, true, true)
		s.late = 100 * time.Millisecond
		var wg sync.WaitGroup
		wg.Go(func() {
			r.Apply(t.Context(), []backend.Op{{Key: keyOf(1), Limits: r.limits, Mode: backend.Refund, Take: engine.Take{Cost: 1, Count: 1}}})
		})
		synctest.Wait()
		s.late = 0
		r.takes(1, false, true)
		r.takes(1, false, false)
		wg.Wait()
		r.takes(1, true, true)
	})
}

// TestRejectionMeetsAnotherLimit sends two ops with the same key but different limits concurrently, as a reload does. The later op lifts
// the rejection of the earlier one, so that must not be remembered, whichever answer arrives first.
func TestRejectionMeetsAnotherLimit(t *testing.T) {
	for _, first := range []time.Duration{10 * time.Millisecond, 200 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			s := newStore()
			r := newReplica(t, s, nearcache.Config{}, bucket(100, hour))
			r.takes(100, true, true)
			quick := engine.Limits{bucket(100_000, 1_000_000)}
			var wg sync.WaitGroup
			ask := func(limits engine.Limits, took time.Duration) {
				s.mu.Lock()
				s.took = took
				s.mu.Unlock()
				wg.Go(func() {
					r.Apply(t.Context(), []backend.Op{{Key: keyOf(1), Limits: limits, Take: engine.Take{Cost: 50, Count: 1}}})
				})
				time.Sleep(time.Millisecond)
			}
			ask(r.limits, 100*time.Millisecond) // rejected
			ask(quick, first)                   // at its rate, all hits have come back
			wg.Wait()
			s.took = 0
			r.takes(50, true, true)
		})
	}
}

func TestCountRefused(t *testing.T) {
	l := bucket(3, hour)
	l.CountRefused = true
	first := window(3, hour)
	first.Align = engine.AlignFirst
	late := window(3, hour)
	late.LateCharge = true // for requests that have already run: counts although the window rejects everything until it ends
	for _, c := range []struct {
		name   string
		limit  engine.Limit
		counts bool
	}{{"Bucket", l, true}, {"First", first, true}, {"Clock", window(3, hour), false}, {"LateCharge", late, true}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReplica(t, newStore(), nearcache.Config{}, c.limit)
				r.drain(3)
				r.do(backend.Peek, 1, false)
				r.takes(1, false, c.counts)
				r.do(backend.Peek, 1, false)
			})
		})
	}
	t.Run("AtTheLimit", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newReplica(t, newStore(), nearcache.Config{}, window(3, hour))
			for range 3 {
				r.takes(1, true, true)
			}
			r.do(backend.Peek, 1, true)
			r.do(backend.Peek, 1, false)
			if d := r.do(backend.Peek, 0, true); d.Admitted != 1 {
				t.Errorf("a look for nothing is rejected at the limit: %+v", d)
			}
			r.takes(1, false, true) // the first one that counts
			r.takes(1, false, false)
			r.do(backend.Peek, 0, false)
		})
	})
}

func TestNeverForConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := engine.Limit{Algorithm: engine.Concurrency, Hits: 2, Window: hour}
		r := newReplica(t, newStore(), nearcache.Config{}, slots)
		r.drain(2)
		r.takes(1, false, true)
		slots.Listed = true
		wide := bucket(1, hour)
		wide.Listed = true
		r.limits = engine.Limits{wide, slots}
		r.drain(1)
		r.takes(1, false, true)
		r.limits = engine.Limits{wide}
		r.takes(1, false, true)
		r.takes(1, false, false)
	})
}

func TestPenalty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := window(2, hour)
		l.CountRefused = false
		r := newReplica(t, newStore(), nearcache.Config{Rejection: 1<<63 - 1}, l)
		r.penalty = &engine.Penalty{For: minute, Max: hour, On: engine.OnExceeded, Escalate: 2}
		r.takes(1, true, true)
		r.takes(1, true, true)
		r.do(backend.Peek, 1, true)
		r.do(backend.Peek, 1, true) // must not keep a take from starting the penalty
		r.takes(1, false, true)
		const drift = 12 * time.Millisecond
		time.Sleep(time.Minute - drift - time.Microsecond)
		if d := r.takes(1, false, false); d.Penalty != drift+time.Microsecond {
			t.Errorf("the penalty lasts for %v more, want %v", d.Penalty, drift+time.Microsecond)
		}
		time.Sleep(drift + time.Microsecond)
		if d := r.takes(1, false, true); d.Penalty != 2*time.Minute {
			t.Errorf("the next penalty lasts %v, want 2 minutes", d.Penalty)
		}
		r.penalty = nil
		r.takes(1, false, true) // another rule
	})
}

func TestErrorsAreNotRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		r := newReplica(t, s, nearcache.Config{}, bucket(1, hour))
		r.takes(1, true, true)
		s.err = errors.New("reset by peer")
		for range 2 {
			r.do(backend.Take, 1, true)
		}
	})
}

// TestSomeOfACall checks that the store gets only those ops of a call that are not remembered, and that its answers are assigned to the
// right ops.
func TestSomeOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		r := newReplica(t, s, nearcache.Config{}, bucket(1, hour))
		ask := func() (admitted, remembered string) {
			ops := make([]backend.Op, 4)
			for i := range ops {
				ops[i] = backend.Op{Key: keyOf(uint64(i)), Limits: engine.Limits{bucket(uint64(i%2)*5+1, hour)}, Take: engine.Take{Cost: 1, Count: 1}}
			}
			r.Apply(t.Context(), ops)
			for i := range ops {
				admitted += string('0' + rune(ops[i].Decision.Admitted))
				remembered += map[bool]string{true: "1", false: "0"}[ops[i].Origin == backend.FromRejection]
			}
			return admitted, remembered
		}
		for _, want := range [][2]string{{"1111", "0000"}, {"0101", "0000"}, {"0101", "1010"}} {
			if a, m := ask(); a != want[0] || m != want[1] {
				t.Errorf("admitted %s, remembered %s, want %s", a, m, want)
			}
		}
		if s.asked != 10 {
			t.Errorf("the store was asked for %d ops, want 10", s.asked)
		}
	})
}
