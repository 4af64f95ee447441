package nearcache_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/nearcache"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// TestLateRefill checks that hits of a refill in progress are spent or refunded, regardless of other operations on the key.
func TestLateRefill(t *testing.T) {
	const limit = 10_000
	for name, disturb := range map[string]func(r *lessor) (admitted uint64){
		"Nothing":  func(*lessor) uint64 { return 0 },
		"Large":    func(r *lessor) uint64 { return 60 * r.do(backend.Take, 60).Admitted },
		"Rejected": func(r *lessor) uint64 { return limit * r.do(backend.Take, limit).Admitted },
		"Off":      func(r *lessor) uint64 { r.lease = backend.LeaseOff; return r.do(backend.Take, 1).Admitted },
		"Changed": func(r *lessor) uint64 {
			r.limits = engine.Limits{plain(limit-1, hour)}
			return r.do(backend.Take, 1).Admitted
		},
		"List": func(r *lessor) uint64 {
			r.limits = engine.Limits{plain(limit, hour), plain(limit, minute)}
			return r.do(backend.Take, limit).Admitted
		},
		"Evicted": func(r *lessor) uint64 {
			for i := range uint64(100) {
				r.Apply(r.Context(), []backend.Op{{Key: keyOf(2 + i/20), Limits: r.limits, Take: engine.Take{Cost: 1, Count: 1}}})
			}
			return 0
		},
		"Stopped": func(r *lessor) uint64 { r.stop(); return 0 },
		"Left": func(r *lessor) uint64 { // by the caller whose call would refund the lease
			ctx, cancel := context.WithCancel(r.Context())
			cancel()
			ops := []backend.Op{{Key: keyOf(1), Limits: r.limits, Take: engine.Take{Cost: 60, Count: 1}}}
			r.Apply(ctx, ops)
			return 60 * ops[0].Decision.Admitted
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				r := newLessor(t, s, nearcache.Config{Keys: 2}, plain(limit, hour))
				admitted := uint64(len(r.hits(100, time.Millisecond)))
				s.delay(50 * time.Millisecond)
				for leased := r.Stats().Leased; s.fetched() == leased; time.Sleep(time.Millisecond) {
					admitted += r.do(backend.Take, 1).Admitted // until a refill is in progress
				}
				s.delay(0)
				held := r.Held()
				admitted += disturb(r)
				if name == "Left" && r.Held() != held {
					t.Errorf("%d hits are leased, want the %d that could not be refunded", r.Held(), held)
				}
				time.Sleep(2 * time.Second) // the hits arrive, and the key is idle for long enough
				synctest.Wait()
				r.limits = engine.Limits{plain(limit, hour)}
				if st := r.Stats(); st.Held != 0 || st.Unspent != 0 || r.left() != limit-admitted {
					t.Errorf("%d are left of %d, %d of which were admitted: %+v", r.left(), limit, admitted, st)
				}
			})
		})
	}
}

// TestImpossibleCost checks that frequent requests that can never be admitted do not affect a lease.
func TestImpossibleCost(t *testing.T) {
	for name, c := range map[string]struct {
		limit engine.Limit
		cost  uint64
	}{
		"Window":         {plain(10_000, hour), 10_001},
		"Bucket":         {bucket(10_000, hour), 10_001},
		"BurstBelowRate": {engine.Limit{Algorithm: engine.TokenBucket, Hits: 100_000, Window: hour, Burst: 1000, Initial: 1000}, 1001},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				r := newLessor(t, s, nearcache.Config{}, c.limit)
				r.hits(100, time.Millisecond)
				synctest.Wait()
				before := r.Stats()
				if before.Held == 0 {
					t.Fatal("nothing is leased")
				}
				for _, m := range []backend.Mode{backend.Take, backend.Peek} {
					if d := r.do(m, c.cost); d.Admitted != 0 || d.RetryAfter == 0 {
						t.Errorf("mode %d: told %+v", m, d)
					}
				}
				if st := r.Stats(); st.Held != before.Held || r.Held() != before.Held || st.Leased != before.Leased {
					t.Errorf("had %+v, and now %+v", before, st)
				}
				for range 1000 {
					r.do(backend.Take, c.cost)
					r.hits(1, 7*time.Millisecond)
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				st := r.Stats()
				if st.Held != 0 || st.Unspent != 0 || c.limit.Algorithm == engine.FixedWindow && r.left() != 10_000-1100 {
					t.Errorf("%d are left of 10000, of which 1100 were admitted: %+v", r.left(), st)
				}
			})
		})
	}
}

// TestResetDropsRefill checks that hits taken before a reset are not refunded after it, however late they arrive.
func TestResetDropsRefill(t *testing.T) {
	for name, evict := range map[string]bool{"Known": false, "Evicted": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				r := newLessor(t, s, nearcache.Config{Keys: 2}, plain(10_000, hour))
				r.hits(100, time.Millisecond)
				s.delay(50 * time.Millisecond)
				for leased := r.Stats().Leased; s.fetched() == leased; time.Sleep(time.Millisecond) {
					r.do(backend.Take, 1) // until a refill is in progress
				}
				s.delay(0)
				if evict {
					for i := range uint64(100) {
						r.Apply(t.Context(), []backend.Op{{Key: keyOf(2 + i/20), Limits: r.limits, Take: engine.Take{Cost: 1, Count: 1}}})
					}
				}
				r.do(backend.Reset, 0)
				if d := r.do(backend.Take, 5000); d.Admitted != 1 || d.Left != 10_000 {
					t.Fatalf("after a reset: %+v", d)
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if st := r.Stats(); st.Held != 0 || st.Reset == 0 || st.Unspent != st.Reset || r.left() != 5000 {
					t.Errorf("%d are left of 10000, of which 5000 were admitted since the reset: %+v", r.left(), st)
				}
			})
		})
	}
}

// misheld returns a description of a replica whose number of leased hits differs from its statistics when no call is in progress, or "".
func (g *game) misheld() string {
	g.asking.Wait()
	for tries := 0; ; tries++ {
		time.Sleep(1500 * time.Microsecond)
		synctest.Wait()
		wrong := ""
		for _, m := range g.replicas {
			if s := m.Stats(); s.Held != m.Held() {
				wrong = fmt.Sprintf("%d hits are leased, but its numbers say %+v", m.Held(), s)
			}
		}
		if wrong == "" || g.weather != calm { // in other weather, refunds may take seconds
			return ""
		}
		if tries > 100 {
			return wrong
		}
	}
}

// unaccounted compares, at the end, the hits taken from the store for leases with the statistics of all replicas, and describes a
// difference. If calls are lost, the difference is unknown.
func (g *game) unaccounted() string {
	if g.weather == rough {
		return ""
	}
	died, ended, failed, given := false, uint64(0), uint64(0), uint64(0)
	for _, b := range g.bounds {
		given += b.given
	}
	for _, m := range append(g.stopped, g.replicas...) {
		if died = died || m.wire.dead; m.wire.dead {
			continue
		}
		s, w := m.Stats(), m.wire
		ended, failed = ended+s.Ended, failed+s.Failed
		switch plain := g.limit.Algorithm == engine.FixedWindow && !g.limit.CountRefused; {
		case s.Held != 0 || m.Held() != 0:
			return fmt.Sprintf("%d hits are leased at the end: %+v", m.Held(), s)
		case w.taken != s.Leased, w.spent != s.Spent, s.Reset > 0, s.Failed > 0 && g.weather == calm: // a slow store does not delay the end
			return fmt.Sprintf("%d hits were taken and %d of them spent: %+v", w.taken, w.spent, s)
		case w.gave < s.Returned+s.Full, w.gave > s.Returned+s.Full+s.Ended, plain && given == 0 && w.accepted != s.Returned:
			return fmt.Sprintf("%d hits were refunded, %d of them to windows that counted them: %+v", w.gave, w.accepted, s)
		}
	}
	if g.limit.Algorithm != engine.FixedWindow || g.limit.CountRefused || g.limit.Window != hour || died || ended > 0 {
		return ""
	}
	unused := uint64(0)
	for i, b := range g.bounds {
		admitted := uint64(0)
		for _, m := range b.admitted {
			admitted += m.hits
		}
		if counted := count(context.Background(), g.store, keyOf(uint64(i)), g.limit); b.given == 0 {
			unused += counted - admitted
		}
	}
	if unused != failed && given == 0 || unused > failed {
		return fmt.Sprintf("%d hits are counted that were not admitted, and %d could not be refunded", unused, failed)
	}
	return ""
}
