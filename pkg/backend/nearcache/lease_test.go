package nearcache_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/nearcache"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// lessor is a replica that leases.
type lessor struct {
	*testing.T
	*nearcache.Backend

	store  *store
	limits engine.Limits
	lease  backend.Lease
	stop   func()
}

func newLessor(t *testing.T, s *store, c nearcache.Config, l engine.Limit) *lessor {
	t.Helper()
	r := &lessor{T: t, Backend: nearcache.New(s, c), store: s, limits: engine.Limits{l}}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.Backend.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	r.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(r.stop)
	synctest.Wait()
	return r
}

func (r *lessor) do(m backend.Mode, cost uint64) engine.Decision {
	r.Helper()
	ops := []backend.Op{{Key: keyOf(1), Limits: r.limits, Mode: m, Lease: r.lease, Take: engine.Take{Cost: cost, Count: 1}}}
	if r.Apply(r.Context(), ops); ops[0].Err != nil {
		r.Fatal(ops[0].Err)
	}
	return ops[0].Decision
}

// hits makes n takes at an even rate, and returns the hits left after each admitted one.
func (r *lessor) hits(n int, each time.Duration) (rungs []uint64) {
	r.Helper()
	for range n {
		if d := r.do(backend.Take, 1); d.Admitted == 1 {
			rungs = append(rungs, d.Left-1)
		}
		time.Sleep(each)
	}
	return rungs
}

// leased returns the number of leased hits.
func (r *lessor) leased() uint64 {
	s := r.Stats()
	return s.Leased - s.Spent - s.Returned - s.Unspent
}

// left returns the hits left in the store.
func (r *lessor) left() uint64 {
	ops := []backend.Op{{Key: keyOf(1), Limits: r.limits, Mode: backend.Peek, Take: engine.Take{Count: 1}}}
	r.store.Backend.Apply(r.Context(), ops)
	return ops[0].Decision.Left
}

// TestHotKey checks that leases serve nearly all requests of a steady hot key, and that none of them waits for a slow refill.
func TestHotKey(t *testing.T) {
	for _, l := range []engine.Limit{window(1_000_000, hour), bucket(1_000_000, hour)} {
		t.Run(l.Algorithm.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				r := newLessor(t, s, nearcache.Config{}, l)
				r.hits(200, time.Millisecond)
				s.delay(5 * time.Millisecond)
				asked, begin := s.count(), time.Now()
				if n := len(r.hits(5000, time.Millisecond)); n != 5000 {
					t.Errorf("%d of 5000 were admitted", n)
				}
				if n := s.count() - asked; n > 50 {
					t.Errorf("the store was asked %d times for 5000 requests, want at most 50", n)
				}
				if took := time.Since(begin); took > 5001*time.Millisecond {
					t.Errorf("5000 requests a millisecond apart took %v: some waited", took)
				}
				s.delay(0)
				time.Sleep(time.Second) // the key is idle
				synctest.Wait()
				if n := r.leased(); n != 0 {
					t.Errorf("%d hits are leased still", n)
				}
				if l.Algorithm == engine.FixedWindow && r.left() != 1_000_000-5200 {
					t.Errorf("the store has %d left, want what 5200 admitted leave", r.left())
				}
			})
		})
	}
}

// Keys that are used only once cost one call and no lease, and do not keep others from leasing.
func TestOneOffKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 1000
		s := newStore()
		r := newLessor(t, s, nearcache.Config{Keys: keys}, window(1_000_000, hour))
		take := func(i uint64) {
			r.Apply(t.Context(), []backend.Op{{Key: keyOf(i), Limits: r.limits, Take: engine.Take{Cost: 1, Count: 1}}})
		}
		for i := range uint64(50_000) {
			take(1000 + i)
		}
		synctest.Wait()
		if st := r.Stats(); s.count() != 50_000 || st.Leased != 0 || st.Entries != 0 {
			t.Errorf("50,000 keys cost %d calls, and %+v", s.count(), st)
		}
		// Twenty hot keys in the middle of a scan, next to a Zipf stream.
		zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.3, 1, 300_000)
		next := uint64(1 << 40)
		for i := range 100_000 {
			if i == 50_000 {
				s.mu.Lock()
				s.asked = 0
				s.mu.Unlock()
			}
			for _, key := range []uint64{uint64(i % 20), next, 1 << 20 * (1 + zipf.Uint64())} {
				take(key)
			}
			next++
			time.Sleep(100 * time.Microsecond)
		}
		st := r.Stats()
		t.Logf("half of 150,000 requests, a third of them of keys that come once, cost %d calls; %+v", s.count(), st)
		if s.count() > 90_000 { // the 50,000 of the scan, and the cold keys of the Zipf stream
			t.Errorf("%d calls for 150,000 requests", s.count())
		}
		if st.Entries > 2*keys {
			t.Errorf("%d keys are known, want at most %d", st.Entries, 2*keys)
		}
	})
}

// TestLeaseEnds checks that a lease of a window ends with the window, and one of a bucket after two seconds, even without a refund.
func TestLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
		r := newLessor(t, s, nearcache.Config{}, window(10_000, second))
		r.hits(400, time.Millisecond)
		if r.leased() == 0 {
			t.Fatal("nothing is leased")
		}
		s.mu.Lock()
		s.err = errors.New("down")
		s.mu.Unlock()
		time.Sleep(600*time.Millisecond - 500*time.Microsecond) // before the margin for this clock's error
		ops := []backend.Op{{Key: keyOf(1), Limits: r.limits, Take: engine.Take{Cost: 1, Count: 1}}}
		if r.Apply(t.Context(), ops); ops[0].Err == nil {
			t.Errorf("a hit of a window that may have ended was spent: %+v", ops[0].Decision)
		}
	})
}

// TestLeaseMeets tests the effect of this replica's other operations on its leases of the same counter.
func TestLeaseMeets(t *testing.T) {
	for name, show := range map[string]func(r *lessor){
		"Reset": func(r *lessor) {
			r.do(backend.Reset, 0)
			if n := r.leased(); n != 0 || r.left() != 10_000 {
				r.Errorf("%d hits are leased, and %d left after a reset", n, r.left())
			}
		},
		"Reload": func(r *lessor) {
			used := 10_000 - r.left() - r.leased()
			r.limits = engine.Limits{window(used, hour)}
			if d := r.do(backend.Take, 1); d.Admitted != 0 {
				r.Errorf("admitted above a limit that has become smaller: %+v", d)
			}
		},
		"Off": func(r *lessor) {
			r.lease = backend.LeaseOff
			r.do(backend.Take, 1)
			if n := r.leased(); n != 0 {
				r.Errorf("%d hits are leased though the rule says off", n)
			}
		},
		"LargeCost": func(r *lessor) {
			all := r.left() + r.leased()
			if d := r.do(backend.Take, all); d.Admitted != 1 || d.Left != all {
				r.Errorf("a cost of all there is was told %+v", d)
			}
		},
		"Peek": func(r *lessor) {
			asked, all := r.store.count(), r.left()+r.leased()
			if d := r.do(backend.Peek, 1); d.Admitted != 1 || d.Left != all {
				r.Errorf("a look was told %+v, want %d left", d, all)
			}
			if d := r.do(backend.Peek, 0); d.Admitted != 1 || r.store.count() != asked {
				r.Errorf("a look for nothing was told %+v, and the store was asked", d)
			}
			if d := r.do(backend.Peek, all); d.Admitted != 1 || d.Left != all || d.RetryAfter != 0 {
				r.Errorf("a look at all there is was told %+v", d)
			}
			if d := r.do(backend.Peek, all+1); d.Admitted != 0 || d.Left != all {
				r.Errorf("a look at more than there is was told %+v", d)
			}
		},
		"Refund": func(r *lessor) {
			all := r.left() + r.leased()
			if d := r.do(backend.Refund, 10); d.Left != all+10 {
				r.Errorf("after giving 10 back %d are left, want %d", d.Left, all+10)
			}
			if d := r.do(backend.Take, 1); d.Left != all+10 {
				r.Errorf("a take after giving 10 back is told %+v, want %d left", d, all+10)
			}
		},
		"Stop": func(r *lessor) {
			all := r.left() + r.leased()
			r.stop()
			if s := r.Stats(); s.Returned == 0 || s.Unspent != 0 || r.left() != all {
				r.Errorf("at the end %d are left, want %d; %+v", r.left(), all, s)
			}
			if d := r.do(backend.Take, 1); d.Admitted != 1 {
				r.Errorf("afterwards a take is told %+v", d)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newLessor(t, newStore(), nearcache.Config{}, window(10_000, hour))
				r.hits(500, time.Millisecond)
				synctest.Wait()
				if r.leased() == 0 {
					t.Fatal("nothing is leased")
				}
				show(r)
			})
		})
	}
}

// Each hit is admitted once, even where answers of the store overtake each other, and gets a different remaining number, unless
// leased hits have gone back: then there are more left than were reported before.
func TestLeaseLadderOutOfOrder(t *testing.T) {
	kept := 0
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			const limit, callers = 1000, 32
			s := newStore()
			s.took, s.mixed = 3*time.Millisecond, rand.New(rand.NewPCG(seed, 1))
			r := newLessor(t, s, nearcache.Config{}, window(limit, hour))
			var mu sync.Mutex
			var all []uint64
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					rungs := r.hits(2*limit/callers, 100*time.Microsecond)
					mu.Lock()
					defer mu.Unlock()
					all = append(all, rungs...)
				})
			}
			wg.Wait()
			back := r.Stats().Returned // possibly after the last take
			if len(all) > limit || len(all) < limit && back == 0 {
				t.Errorf("seed %d: %d were admitted, want %d", seed, len(all), limit)
			}
			slices.Sort(all)
			if n := len(slices.Compact(all)); n != limit && back == 0 {
				t.Errorf("seed %d: %d different numbers remained, want %d", seed, n, limit)
			}
			if back == 0 {
				kept++
			}
		})
	}
	if kept == 0 {
		t.Error("leased hits have gone back each time")
	}
}

// TestNoLease checks that small limits, cold keys and rules without leases remain exact.
func TestNoLease(t *testing.T) {
	list := bucket(100_000, hour)
	list.Listed = true
	owes := bucket(100_000, hour)
	owes.Debt = 10
	slide := engine.Limit{Algorithm: engine.SlidingWindow, Precision: 10, Hits: 100_000, Window: hour}
	for name, c := range map[string]struct {
		limit engine.Limit
		lease backend.Lease
		each  time.Duration
	}{
		"Small":    {window(199, hour), backend.LeaseAuto, time.Millisecond},
		"Cold":     {window(100_000, hour), backend.LeaseAuto, 100 * time.Millisecond},
		"Off":      {window(100_000, hour), backend.LeaseOff, time.Millisecond},
		"List":     {list, backend.LeaseAuto, time.Millisecond},
		"Debt":     {owes, backend.LeaseAuto, time.Millisecond},
		"Sliding":  {slide, backend.LeaseAuto, time.Millisecond},
		"NoLeases": {window(100_000, hour), backend.LeaseAuto, time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newLessor(t, newStore(), nearcache.Config{NoLeases: name == "NoLeases"}, c.limit)
				r.lease = c.lease
				r.hits(150, c.each)
				if s := r.Stats(); s.Leased != 0 || r.store.count() != 150 {
					t.Errorf("the store was asked %d times for 150 requests; %+v", r.store.count(), s)
				}
			})
		})
	}
}

// TestWaitsForRefill checks that callers wait for a refill in progress, but not for long.
func TestWaitsForRefill(t *testing.T) {
	for _, slow := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newStore()
			r := newLessor(t, s, nearcache.Config{Budget: time.Second}, window(1_000_000, hour))
			r.lease = 1000
			r.hits(2, 0)
			took := 2 * time.Millisecond
			if slow {
				took = 100 * time.Millisecond
			}
			s.delay(took)
			s.mu.Lock()
			s.asked = 0
			s.mu.Unlock()
			var wg sync.WaitGroup
			begin := time.Now()
			for range 50 {
				wg.Go(func() {
					if d := r.do(backend.Take, 1); d.Admitted != 1 {
						t.Errorf("rejected: %+v", d)
					}
				})
			}
			wg.Wait()
			gone, want := time.Since(begin), 2*time.Millisecond
			if slow {
				want = 110 * time.Millisecond // the wait, followed by the store's answer
			}
			if gone > want {
				t.Errorf("50 requests were answered after %v, want %v", gone, want)
			}
			if !slow && s.count() > 2 {
				t.Errorf("the store was asked %d times, want for the first of 50 and for a refill", s.count())
			}
		})
	}
}

// TestRefillFails checks that a refill is retried after a failed call or a lost reply, and that hits debited by it are not used.
func TestRefillFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		r := newLessor(t, s, nearcache.Config{}, window(100_000, hour))
		s.err = errors.New("reply lost")
		ops := []backend.Op{{Key: keyOf(1), Limits: r.limits, Lease: 100, Take: engine.Take{Cost: 1, Count: 1}}}
		for range 100 {
			if r.Apply(t.Context(), ops); ops[0].Err == nil {
				t.Fatal("an error is not passed on")
			}
			time.Sleep(time.Millisecond)
		}
		if st := r.Stats(); st.Leased != 0 || st.Hits != 0 {
			t.Errorf("after lost replies: %+v", st)
		}
		s.mu.Lock()
		s.err = nil
		s.mu.Unlock()
		time.Sleep(time.Second)
		r.hits(500, time.Millisecond)
		if st := r.Stats(); st.Spent == 0 {
			t.Errorf("nothing is leased once the store answers: %+v", st)
		}
	})
}
