package shares_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
)

// TestFloods checks that RLS callers get the hits that clients do not use, if clients flood a strict window for 5 s occasionally.
func TestFloods(t *testing.T) {
	t.Parallel()
	l := simLimit{Limit: shares.Limit{Hits: 1200, Window: 60 * second}, mode: shares.Strict, delivery: 10 * second}
	for _, calls := range []float64{0, 20, 100} {
		for _, every := range []shares.Micros{15, 30, 60} {
			s := fleet(l, 2, 0, 0, 0, 0)
			s.replicas[0].calls, s.replicas[1].calls = calls/2, calls/2
			s.run((s.now/l.Window + 1) * l.Window)
			var used []float64
			for range 4 {
				from := s.now
				for range 60 {
					for _, c := range s.clients {
						if c.demand = 0; s.now/second%every < 5 {
							c.demand = 100
						}
					}
					s.run(s.now + second)
				}
				used = append(used, s.used(from, s.now)*float64(l.Hits))
			}
			t.Logf("%.0f RLS calls a second, a flood each %d s: of 1200 hits in a window %sare used", calls, every, show(used))
			if s.worst > 1200 {
				t.Errorf("%.0f of 1200 hits were admitted in a window", s.worst)
			}
			for i, n := range used {
				if calls > 0 && n < 0.7*1200 {
					t.Errorf("%.0f RLS calls a second, a flood each %d s: %.0f of 1200 hits were used in window %d", calls, every, n, i)
				}
			}
		}
	}
}

// TestWholeWindow checks that clients are stopped immediately if callers take all of a new window before hits for old assignments are
// debited, or if the store does not answer when a window begins.
func TestWholeWindow(t *testing.T) {
	t.Parallel()
	l := simLimit{Limit: shares.Limit{Hits: 1200, Window: 60 * second}, mode: shares.Strict, delivery: 10 * second}
	for _, replicas := range []int{0, 2} {
		for _, outage := range []shares.Micros{0, second, 10 * second} {
			s := fleet(l, replicas, 100, 100, 100, 100)
			s.fallback = shares.Deny
			edge := (s.now/l.Window + 1) * l.Window
			s.run(edge - slice)
			s.store.down = outage > 0
			s.run(edge - slice + outage)
			s.store.down = false
			taken := float64(s.store.take(edge+outage, l.Hits))
			s.run(edge + outage + 20*second)
			if taken < 0.9*float64(l.Hits) {
				t.Fatalf("%d replicas: callers got %.0f hits of the new window: it is not new", replicas, taken)
			}
			if excess := taken + s.window - float64(l.Hits); excess > 0.01*float64(l.Hits) {
				t.Errorf("%d replicas, the store is away for %d s: %.0f hits were admitted beyond the limit, want 1 %% at most",
					replicas, outage/second, excess)
			}
		}
	}
}

// TestOtherNumber checks that a strict window whose number is raised and lowered again still admits the hits left.
func TestOtherNumber(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{0, 2} {
		l := simLimit{Limit: shares.Limit{Hits: 600, Window: 60 * second}, mode: shares.Strict, delivery: 10 * second}
		s := fleet(l, replicas, 4, 4)
		s.run((s.now/l.Window+1)*l.Window + 20*second)
		for _, hits := range []uint64{1200, 600} {
			for _, r := range s.replicas {
				r.bucket.Become(shares.Config{Limit: shares.Limit{Hits: hits, Window: l.Window}, Mode: l.mode, Replica: r.bucket.Replica, Delivery: l.delivery}, s.now)
			}
			s.store.advance(s.now)
			s.store.level += float64(hits) - float64(s.store.limit.Hits)
			s.store.limit.Hits = hits
			s.run(s.now + 20*second)
		}
		if used := s.used(s.now-15*second, s.now) * float64(l.Hits) / 60; used < 6 {
			t.Errorf("%d replicas: %.1f of 8 requests a second are admitted after the number was lowered", replicas, used)
		}
		if s.worst > float64(l.Hits) {
			t.Errorf("%d replicas: %.0f of %d hits were admitted in the window", replicas, s.worst, l.Hits)
		}
	}
}
