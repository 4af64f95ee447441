package memory_test

import (
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/backendtest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	"github.com/ratelimitd/ratelimitd/pkg/engine/enginetest"
)

const (
	second engine.Micros = 1_000_000
	minute               = 60 * second
)

func TestBackend(t *testing.T) {
	backendtest.Run(t, backendtest.Harness{Open: func(_ testing.TB, now func() engine.Micros) backend.Backend {
		return memory.New(memory.Config{Now: now})
	}})
}

// testClock is a time that tests set.
type testClock struct{ µs atomic.Int64 }

func newTestClock() *testClock {
	c := new(testClock)
	c.µs.Store(1_800_000_000 * int64(second))
	return c
}

func (c *testClock) now() engine.Micros { return engine.Micros(c.µs.Load()) }

func (c *testClock) add(d engine.Micros) { c.µs.Add(int64(d)) }

// keyOf returns the i-th key. Like those of real counters it is a hash.
func keyOf(i int) (k backend.Key) {
	binary.BigEndian.PutUint64(k[:8], mix(uint64(2*i)))
	binary.BigEndian.PutUint64(k[8:], mix(uint64(2*i+1)))
	return k
}

// mix is the output function of splitmix64.
func mix(x uint64) uint64 {
	x *= 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func windowOf(hits uint64, window engine.Micros) engine.Limits {
	return engine.Limits{{Algorithm: engine.FixedWindow, Hits: hits, Window: window, CountRefused: true}}
}

// take takes one hit, and reports whether it was admitted.
func take(b *memory.Backend, key int, limits engine.Limits) bool {
	ops := [1]backend.Op{{Key: keyOf(key), Limits: limits, Take: engine.Take{Cost: 1, Count: 1}}}
	b.Apply(context.Background(), ops[:])
	return ops[0].Decision.Admitted == 1
}

func mode(b *memory.Backend, m backend.Mode, key int, limits engine.Limits) {
	b.Apply(context.Background(), []backend.Op{{Key: keyOf(key), Limits: limits, Mode: m, Take: engine.Take{Cost: 1, Count: 1}}})
}

func check(t *testing.T, b *memory.Backend, want memory.Stats) {
	t.Helper()
	if got := b.Stats(); got != want {
		t.Fatalf("got %+v, want %+v", got, want)
	}
}

func TestStoresNothingForNothing(t *testing.T) {
	b := memory.New(memory.Config{Now: newTestClock().now})
	limits := windowOf(10, minute)
	mode(b, backend.Peek, 1, limits)
	mode(b, backend.Refund, 1, limits)
	mode(b, backend.Reset, 1, limits)
	check(t, b, memory.Stats{})
	take(b, 1, limits)
	check(t, b, memory.Stats{Entries: 1, Keys: 1})
	mode(b, backend.Reset, 1, limits)
	check(t, b, memory.Stats{})
}

func TestDecidesWhenCancelled(t *testing.T) {
	b := memory.New(memory.Config{Now: newTestClock().now})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ops := []backend.Op{{Limits: windowOf(1, minute), Take: engine.Take{Cost: 1, Count: 1}, Err: context.Canceled}}
	b.Apply(ctx, ops)
	if op := ops[0]; op.Decision.Admitted != 1 || op.Err != nil {
		t.Fatalf("got %+v, %v, want one admitted", op.Decision, op.Err)
	}
}

// TestLogWeighs: a log counts as one key per 16 stamps.
func TestLogWeighs(t *testing.T) {
	log := engine.Limits{{Algorithm: engine.SlidingLog, Hits: 10_000, Window: minute}}
	c := newTestClock()
	b := memory.New(memory.Config{Now: func() engine.Micros { return engine.Micros(c.µs.Add(1)) }, MaxKeys: 100})
	for range 33 {
		take(b, 1, log)
	}
	check(t, b, memory.Stats{Entries: 1, Keys: 3})
	for range 5000 {
		take(b, 1, log)
	}
	check(t, b, memory.Stats{Entries: 1, Keys: 315}) // the one decided on last stays
	take(b, 2, log)
	check(t, b, memory.Stats{Entries: 1, Keys: 1, ForcedOut: 1})
}

func TestCap(t *testing.T) {
	limits := windowOf(1, minute)
	for _, maxKeys := range []int{1, 2, 10, 127, 128, 1000, 20_000} {
		b := memory.New(memory.Config{Now: newTestClock().now, MaxKeys: maxKeys})
		for key := range 2*maxKeys + 1 {
			if !take(b, key, limits) {
				t.Fatalf("cap %d: key %d was rejected its first hit", maxKeys, key)
			}
			if take(b, key, limits) {
				t.Fatalf("cap %d: key %d was not kept, although it is the last one", maxKeys, key)
			}
			if got := b.Stats().Keys; maxKeys < 2000 && got > maxKeys {
				t.Fatalf("cap %d: %d keys are held", maxKeys, got)
			}
		}
		check(t, b, memory.Stats{Entries: maxKeys, Keys: maxKeys, ForcedOut: uint64(maxKeys + 1)})
	}
}

// TestCapKeepsDescriptorWhole checks that the counters of the current descriptor are kept, even if they alone exceed the cap.
func TestCapKeepsDescriptorWhole(t *testing.T) {
	b := memory.New(memory.Config{Now: newTestClock().now, MaxKeys: 1})
	list := engine.Limits{
		{Algorithm: engine.FixedWindow, Hits: 2, Window: second, Listed: true},
		{Algorithm: engine.FixedWindow, Hits: 2, Window: minute, Listed: true},
		{Algorithm: engine.TokenBucket, Hits: 2, Window: minute, Burst: 2, Initial: 2, Listed: true},
	}
	for i, want := range []bool{true, true, false} {
		if got := take(b, 1, list); got != want {
			t.Errorf("take %d: admitted is %t, want %t", i, got, want)
		}
	}
	check(t, b, memory.Stats{Entries: 3, Keys: 3})
	take(b, 2, list)
	check(t, b, memory.Stats{Entries: 3, Keys: 3, ForcedOut: 3})
}

// TestCapHoldsConcurrently checks that the number of counters does not exceed the cap once all concurrent callers have returned.
func TestCapHoldsConcurrently(t *testing.T) {
	const maxKeys = 500
	b := memory.New(memory.Config{Now: newTestClock().now, MaxKeys: maxKeys})
	limits := windowOf(1, minute)
	var wg sync.WaitGroup
	for caller := range 8 {
		wg.Go(func() {
			for i := range 5000 {
				take(b, caller<<32|i, limits)
			}
		})
	}
	wg.Wait()
	s := b.Stats()
	if s.Keys > maxKeys || s.Entries != s.Keys || s.Entries+int(s.ForcedOut) != 8*5000 {
		t.Fatalf("after 40,000 keys under a cap of %d: %+v", maxKeys, s)
	}
}

// TestHotCountersOutliveAFlood checks that keys used once evict each other, regardless of their windows, and that counters in use stay.
func TestHotCountersOutliveAFlood(t *testing.T) {
	const maxKeys, hot = 10_000, 2000
	b := memory.New(memory.Config{Now: newTestClock().now, MaxKeys: maxKeys})
	limits, flood := windowOf(3, minute), windowOf(1, 60*minute)
	next := hot
	for round := range 50 {
		for key := range hot {
			if admitted := take(b, key, limits); admitted != (round < 3) {
				t.Fatalf("round %d: key %d: admitted is %t", round, key, admitted)
			}
			for range 2 * min(1, round/4) { // the flood begins once all hot keys count as hot
				take(b, next, flood)
				next++
			}
		}
	}
	if s := b.Stats(); s.Keys != maxKeys || int(s.ForcedOut) != next-maxKeys {
		t.Fatalf("after %d keys: %+v", next, s)
	}
}

// TestCountersCoolDown checks that counters that were hot but are no longer used are evicted in favor of current hot ones.
func TestCountersCoolDown(t *testing.T) {
	const maxKeys, hot = 1000, 100
	b := memory.New(memory.Config{Now: newTestClock().now, MaxKeys: maxKeys})
	short, long := windowOf(1<<30, minute), windowOf(1<<30, 60*minute)
	for range 5 {
		for key := range maxKeys {
			take(b, key, long)
		}
	}
	next := 2 * maxKeys
	for range 100 {
		for key := range hot {
			take(b, maxKeys+key, short)
			take(b, next, long)
			next++
		}
	}
	before := b.Stats().ForcedOut
	for key := range hot {
		take(b, maxKeys+key, short)
	}
	if lost := b.Stats().ForcedOut - before; lost > hot/20 {
		t.Errorf("%d of %d counters in use were not kept", lost, hot)
	}
}

// TestSoonestExpiringGoFirst checks that among equally used counters, the first to expire is evicted.
func TestSoonestExpiringGoFirst(t *testing.T) {
	const maxKeys = 1000
	b := memory.New(memory.Config{Now: newTestClock().now, MaxKeys: maxKeys})
	short, long := windowOf(1, minute), windowOf(1, 1000*minute)
	for key := range maxKeys {
		if key%2 == 0 {
			take(b, key, short)
		} else {
			take(b, key, long)
		}
	}
	for key := range maxKeys / 4 {
		take(b, maxKeys+key, long)
	}
	gone := 0
	for key := 1; key < maxKeys; key += 2 {
		ops := []backend.Op{{Key: keyOf(key), Limits: long, Mode: backend.Peek, Take: engine.Take{Cost: 1, Count: 1}}}
		b.Apply(t.Context(), ops)
		gone += int(ops[0].Decision.Admitted)
	}
	if gone > maxKeys/20 {
		t.Errorf("%d of %d counters with a long window were forced out while short ones were there", gone, maxKeys/2)
	}
}

// TestExpiredGo checks that any traffic drops expired counters within a few rounds, and that they do not count as evicted.
func TestExpiredGo(t *testing.T) {
	const keys = 100_000
	c := newTestClock()
	b := memory.New(memory.Config{Now: c.now})
	for key := range keys {
		take(b, key, windowOf(1, second))
	}
	check(t, b, memory.Stats{Entries: keys, Keys: keys})
	c.add(2 * second)
	for range 30 * 200 { // half a minute at 200 requests per second
		c.add(second / 200)
		take(b, keys, windowOf(1, 60*minute))
	}
	check(t, b, memory.Stats{Entries: 1, Keys: 1})
}

// TestExpiredMakeRoom checks that no live counter is evicted while an expired one remains.
func TestExpiredMakeRoom(t *testing.T) {
	c := newTestClock()
	b := memory.New(memory.Config{Now: c.now, MaxKeys: 50})
	for key := range 50 {
		take(b, key, windowOf(1, second))
	}
	c.add(second)
	for key := range 50 {
		take(b, 100+key, windowOf(1, minute))
	}
	check(t, b, memory.Stats{Entries: 50, Keys: 50})
}

// TestExpiredGoFirst checks that none is evicted while the number of live counters is below the cap, and that Stats counts only live
// ones.
func TestExpiredGoFirst(t *testing.T) {
	lasting := engine.Limits{{Algorithm: engine.FixedWindow, Hits: 1, Window: 60 * minute, Align: engine.AlignFirst}}
	for name, brief := range map[string]engine.Limit{
		"fixed_window":            {Algorithm: engine.FixedWindow, Hits: 1, Window: second},
		"fixed_window of its own": {Algorithm: engine.FixedWindow, Hits: 1, Window: second, Align: engine.AlignFirst},
		"token_bucket":            {Algorithm: engine.TokenBucket, Hits: 1, Window: second, Burst: 1, Initial: 1},
		"sliding_log":             {Algorithm: engine.SlidingLog, Hits: 1, Window: second},
	} {
		for _, scale := range []int{1, 10} {
			c := newTestClock()
			b := memory.New(memory.Config{Now: c.now, MaxKeys: 2000 * scale})
			for key := range 900 * scale {
				take(b, key, lasting)
			}
			for i := range 60 * 400 * scale {
				c.add(second / engine.Micros(400*scale))
				take(b, 1<<32|i, engine.Limits{brief})
			}
			if s := b.Stats(); s.Keys > 1340*scale || s.ForcedOut > 0 {
				t.Errorf("%s: %+v, want at most %d keys, the live ones, and none forced out", name, s, 1340*scale)
			}
			lost := 0
			for key := range 900 * scale {
				if take(b, key, lasting) {
					lost++
				}
			}
			c.add(2 * second)
			if s := b.Stats(); lost > 0 || s.Keys != 900*scale || s.Entries != 900*scale {
				t.Errorf("%s: %d of %d counters in use were lost, %+v", name, lost, 900*scale, s)
			}
		}
	}
}

// TestClockSetBack checks that sweeps continue after the clock was set back by a day.
func TestClockSetBack(t *testing.T) {
	c := newTestClock()
	b := memory.New(memory.Config{Now: c.now})
	take(b, 1, windowOf(1, second))
	c.add(-24 * 60 * minute)
	take(b, 2, windowOf(1, second))
	for range 2 { // one batch does not reach the last shards
		c.add(11 * second)
		take(b, 3, windowOf(1, second))
	}
	check(t, b, memory.Stats{Entries: 2, Keys: 2}) // 1, which ends tomorrow, and 3
}

// TestTimeAgreesWithOrder checks that callers that reach a counter in another order than they read the clock never return it to a past
// window, which would admit hits twice.
func TestTimeAgreesWithOrder(t *testing.T) {
	const hits, window = 7, engine.Micros(50)
	c := newTestClock()
	b := memory.New(memory.Config{Now: func() engine.Micros { return engine.Micros(c.µs.Add(1)) }})
	limits := windowOf(hits, window)
	var mu sync.Mutex
	admitted := map[int64]uint64{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20_000 {
				ops := [1]backend.Op{{Limits: limits, Take: engine.Take{Cost: 1, Count: 1}}}
				b.Apply(t.Context(), ops[:])
				mu.Lock()
				admitted[ops[0].Decision.Window] += ops[0].Decision.Admitted
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for w, n := range admitted {
		if n > hits {
			t.Fatalf("window %d admitted %d of %d", w, n, hits)
		}
	}
}

// TestOvertakenBySweep checks that an op does not find an empty window if it read the clock in a window that has since ended and whose
// counter another caller has swept.
func TestOvertakenBySweep(t *testing.T) {
	c := newTestClock()
	overtake := func() {}
	b := memory.New(memory.Config{Now: func() engine.Micros {
		now, f := c.now(), overtake
		overtake = func() {}
		f()
		return now
	}})
	limits := windowOf(1, second)
	decide := func(key byte) engine.Decision {
		ops := []backend.Op{{Key: backend.Key{key}, Limits: limits, Take: engine.Take{Cost: 1, Count: 1}}}
		b.Apply(t.Context(), ops)
		return ops[0].Decision
	}
	first := decide(1)
	overtake = func() {
		for range 3 {
			c.add(11 * second)
			decide(2)
		}
		check(t, b, memory.Stats{Entries: 1, Keys: 1})
	}
	if d := decide(1); d.Admitted != 1 || d.Window <= first.Window {
		t.Errorf("%+v after %+v, want a hit of a later window", d, first)
	}
}

// TestPanicUnlocks checks that a panic while a shard is locked leaves it usable.
func TestPanicUnlocks(t *testing.T) {
	times := []engine.Micros{100 * second, 50 * second} // the second runs backwards, so it is read again under the lock
	b := memory.New(memory.Config{MaxKeys: 1, Now: func() engine.Micros {
		if len(times) == 0 {
			panic("no more time")
		}
		now := times[0]
		times = times[1:]
		return now
	}})
	limits := windowOf(1, minute)
	take(b, 1, limits)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("did not panic")
			}
		}()
		take(b, 1, limits)
	}()
	times = []engine.Micros{101 * second}
	if take(b, 1, limits) {
		t.Error("the count is lost")
	}
}

// TestMain checks that nothing runs in the background.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestForever: a window that never ends is counted here too, because on_failure: local does it while Redis is down.
func TestForever(t *testing.T) {
	t.Parallel()
	now := engine.Micros(1_790_000_000_000_000)
	b := memory.New(memory.Config{Now: func() engine.Micros { return now }})
	l := engine.Limits{{Hits: 3, Window: 1 << 48, Calendar: enginetest.Calendar("UTC", engine.CalendarForever, 1)}}
	for i := range 5 {
		ops := []backend.Op{{Key: backend.Key{1}, Limits: l, Take: engine.Take{Cost: 1, Count: 1}}}
		b.Apply(t.Context(), ops)
		if d := ops[0].Decision; d.Admitted == 1 != (i < 3) || d.ResetAfter != engine.Never || ops[0].Err != nil {
			t.Errorf("%d: %+v, %v", i, d, ops[0].Err)
		}
		now += 1 << 49 // 17 years
	}
}
