package memory_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// TestMillionCounters fills a backend to its cap, in real time. The goals are 200 bytes per counter and no pause over
// 10 ms. Other programs cause pauses too, so ten times as much is allowed, and the best of thirty attempts counts:
// pauses caused by the backend itself would show in each of them.
func TestMillionCounters(t *testing.T) {
	keys := million
	if testing.Short() {
		keys /= 10
	}
	for name, l := range benchLimits() {
		if l.Algorithm == engine.FixedWindow {
			l.Align = engine.AlignFirst // so that no window ends meanwhile, whatever the time is
		}
		t.Run(name, func(t *testing.T) {
			longest := time.Hour
			for try := 0; try < 30 && longest > 100*time.Millisecond; try++ {
				before := heap()
				b := memory.New(memory.Config{MaxKeys: keys})
				longest = min(longest, longestTake(b, engine.Limits{l}, keys))
				each := (heap() - before) / uint64(keys)
				t.Logf("%d counters of %d bytes, longest take %v", keys, each, longest)
				if each > 200 {
					t.Errorf("a counter takes %d bytes, want at most 200", each)
				}
				check(t, b, memory.Stats{Entries: keys, Keys: keys})
			}
			if longest > 100*time.Millisecond {
				t.Errorf("a take paused for %v, want at most 10 ms, and allow 100", longest)
			}
		})
	}
}

// longestTake returns the duration of the slowest first take of keys.
func longestTake(b *memory.Backend, limits engine.Limits, keys int) (longest time.Duration) {
	for key := range keys {
		start := time.Now()
		take(b, key, limits)
		longest = max(longest, time.Since(start))
	}
	return longest
}

// heap returns the bytes in use after garbage collection.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func benchLimits() map[string]engine.Limit {
	return map[string]engine.Limit{
		"fixed_window": {Algorithm: engine.FixedWindow, Hits: 1 << 30, Window: 1000 * minute, CountRefused: true},
		"token_bucket": {Algorithm: engine.TokenBucket, Hits: 3, Window: 1000 * minute, Burst: 1 << 30, Initial: 1 << 30},
	}
}

// BenchmarkTake measures calls with one take.
func BenchmarkTake(b *testing.B) {
	for name, l := range benchLimits() {
		for _, keys := range []int{1, 1_000_000} {
			store := memory.New(memory.Config{})
			limits := engine.Limits{l}
			names := make([]backend.Key, keys)
			for i := range names {
				names[i] = keyOf(i)
				take(store, i, limits)
			}
			b.Run(fmt.Sprintf("%s/keys=%d/goroutines=1", name, keys), func(b *testing.B) {
				b.ReportAllocs()
				benchTake(store, limits, names, 0, b.Loop)
			})
			b.Run(fmt.Sprintf("%s/keys=%d/goroutines=%d", name, keys, runtime.GOMAXPROCS(0)), func(b *testing.B) {
				b.ReportAllocs()
				var from atomic.Int64
				b.RunParallel(func(pb *testing.PB) {
					benchTake(store, limits, names, int(from.Add(1))*keys/7, pb.Next)
				})
			})
		}
	}
}

func benchTake(store *memory.Backend, limits engine.Limits, names []backend.Key, from int, next func() bool) {
	ops := [1]backend.Op{{Limits: limits, Take: engine.Take{Cost: 1, Count: 1}}}
	for i := from % len(names); next(); {
		ops[0].Key = names[i]
		store.Apply(context.Background(), ops[:])
		if i++; i == len(names) {
			i = 0
		}
	}
}

// BenchmarkNewKey measures the first take of a key, in a backend with free space and in one where each new key evicts another.
func BenchmarkNewKey(b *testing.B) {
	limits := windowOf(1, 1000*minute)
	for _, maxKeys := range []int{100_000, 1 << 40} {
		b.Run(fmt.Sprintf("cap=%d", maxKeys), func(b *testing.B) {
			store := memory.New(memory.Config{MaxKeys: maxKeys})
			b.ReportAllocs()
			for key := 0; b.Loop(); key++ {
				take(store, key, limits)
			}
		})
	}
}
