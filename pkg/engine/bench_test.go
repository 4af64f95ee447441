package engine

import "testing"

const base = 1_790_000_000_000_000 // a moment in September 2026

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
