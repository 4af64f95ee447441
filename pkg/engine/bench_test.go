package engine

import (
	"fmt"
	"runtime"
	"testing"
)

const base = 1_790_000_000_000_000 // a time in September 2026

func BenchmarkTake(b *testing.B) {
	for _, c := range []struct {
		name  string
		limit Limit
	}{
		{"fixed_window", Limit{CountRefused: true, Hits: 1000, Window: 1e6}},
		{"token_bucket", Limit{Algorithm: TokenBucket, Hits: 1000, Window: 1e6, Burst: 1000, Initial: 1000}},
		{"token_bucket/uneven", Limit{Algorithm: TokenBucket, Hits: 999, Window: 1e6, Burst: 999, Initial: 999}},
		{"leaky_bucket", Limit{Algorithm: LeakyBucket, Hits: 1000, Window: 1e6, Burst: 1000}},
		{"sliding_window", Limit{Algorithm: SlidingWindow, Hits: 1000, Window: 1e6, Precision: 10}},
		{"sliding_log", Limit{Algorithm: SlidingLog, Hits: 1000, Window: 1e6}},
		{"concurrency", Limit{Algorithm: Concurrency, Hits: 1000, Window: 1e6}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			limits := Limits{c.limit.Prepared()}
			var s State
			now := Micros(base)
			for b.Loop() {
				limits.Take([]*State{&s}, now, Take{Cost: 1, Count: 1})
				now += 700
			}
		})
	}
}

// BenchmarkSlots takes and releases while a number of slots is held, each by its own owner or by none. B/slot is their memory, without
// the names of owners.
func BenchmarkSlots(b *testing.B) {
	for _, n := range []int{10, 100, 10_000} {
		owners := make([]string, n)
		for i := range owners {
			owners[i] = fmt.Sprintf("owner %d", i*7919%n)
		}
		limits := Limits{{Algorithm: Concurrency, Hits: uint64(n), Window: 3600e6}}
		for _, owned := range []bool{true, false} {
			var s State
			fill := func() {
				for i := range n {
					take := Take{Cost: 1, Count: 1}
					if owned {
						take.Owner = owners[i]
					}
					limits.Take([]*State{&s}, base+Micros(i), take)
				}
			}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			fill()
			runtime.GC()
			runtime.ReadMemStats(&after)
			memory := float64(after.HeapAlloc-before.HeapAlloc) / float64(n)
			name := "by no one"
			if owned {
				name = "by owners"
			}
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.ReportAllocs()
				now, i := Micros(base+n), 0
				for b.Loop() {
					take := Take{Cost: 1, Count: 1}
					if owned {
						take.Owner = owners[i%n]
						if d := limits.Take([]*State{&s}, now, take); d.Renewed != 1 {
							b.Fatal(d)
						}
					}
					limits.Refund([]*State{&s}, now, take)
					if d := limits.Take([]*State{&s}, now, take); d.Admitted != 1 {
						b.Fatal(d)
					}
					if d := limits.Take([]*State{&s}, now, Take{Cost: 1, Count: 1, Owner: "another"}); d.Admitted != 0 || d.RetryAfter == 0 {
						b.Fatal(d)
					}
					now++
					i++
				}
				b.ReportMetric(memory, "B/slot")
			})
		}
	}
}
