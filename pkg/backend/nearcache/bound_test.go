package nearcache_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/nearcache"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// TestBound checks that at most Config.Keys keys are remembered, whatever clients send. Keys used once must not evict frequent keys,
// neither in a random mix (a Zipf stream) nor in sequence (a scan).
func TestBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 3000
		s := newStore()
		r := newReplica(t, s, nearcache.Config{Keys: keys, Rejection: 1<<63 - 1}, bucket(1, hour))
		reject := func(i uint64) {
			r.Apply(t.Context(), []backend.Op{{Key: keyOf(i), Limits: r.limits, Mode: backend.Take, Take: engine.Take{Cost: 1, Count: 2}}})
		}
		zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, 300_000)
		share := func(stream func()) float64 {
			const n = 60_000
			before := r.Stats()
			for range n {
				stream()
			}
			after := r.Stats()
			if after.Entries > keys {
				t.Fatalf("%d keys are remembered, want at most %d", after.Entries, keys)
			}
			return float64(after.Rejections-before.Rejections) / n
		}
		share(func() { reject(zipf.Uint64()) }) // warm-up
		alone := share(func() { reject(zipf.Uint64()) })
		next := uint64(1 << 40)
		scan := func() { next++; reject(next) }
		if n := share(scan); n != 0 {
			t.Errorf("%.3f of a scan was remembered", n)
		}
		after := share(func() { reject(zipf.Uint64()) })
		mixed := 2 * share(func() {
			if next%2 == 0 {
				scan()
				return
			}
			next++
			reject(zipf.Uint64())
		})
		t.Logf("of a Zipf stream %.3f are remembered, after a scan %.3f, with one %.3f; %+v", alone, after, mixed, r.Stats())
		if after < alone-0.05 || mixed < alone-0.05 {
			t.Errorf("a scan pushes out what comes often: %.3f alone, %.3f after, %.3f with it", alone, after, mixed)
		}
		if alone < 0.5 {
			t.Errorf("%.3f of a Zipf stream was remembered", alone)
		}
	})
}

func TestSmallest(t *testing.T) {
	for _, keys := range []int{1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 255, 256, 300} {
		b := nearcache.New(newStore(), nearcache.Config{Keys: keys})
		for i := range uint64(2000) {
			b.Apply(t.Context(), []backend.Op{{Key: keyOf(i), Limits: engine.Limits{bucket(1, hour)}, Take: engine.Take{Cost: 1, Count: 2}}})
		}
		s := b.Stats()
		if most := max(keys, 2); s.Entries > most || s.Entries < most/2 || s.Entries+int(s.Evictions) != 2000 {
			t.Fatalf("Keys %d: %+v", keys, s)
		}
	}
}

// TestLookups checks that each request counts one lookup per counter, whether a lease or the store decides it, and even if it asks
// repeatedly. A lease does not count as a rejection.
func TestLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newLessor(t, newStore(), nearcache.Config{Rejection: nearcache.UntilEnd}, window(1000, hour))
		r.hits(1000, time.Millisecond)
		if s := r.Stats(); s.Misses != 1000 || s.Hits == 0 || s.Entries != 1 || s.Remembered != 0 {
			t.Errorf("after 1000 hits, some of them leased: %+v; want 1000 misses, and no rejection remembered", s)
		}
		ops := []backend.Op{{Key: keyOf(1), Limits: r.limits, Mode: backend.Peek, Take: engine.Take{Cost: 1, Count: 1}}}
		r.Apply(t.Context(), ops)
		ops[0].Mode, ops[0].Again = backend.Take, true
		r.Apply(t.Context(), ops)
		if s := r.Stats(); s.Misses != 1001 || s.Rejections != 0 || s.Remembered != 1 {
			t.Errorf("after a request that looked and took: %+v; want one miss more, and one rejection remembered", s)
		}
		ops[0].Again = false
		r.Apply(t.Context(), ops)
		if s := r.Stats(); s.Misses != 1001 || s.Rejections != 1 || s.Remembered != 1 || s.Forgotten != 0 {
			t.Errorf("after a rejection from memory: %+v; want no miss more", s)
		}
	})
}
