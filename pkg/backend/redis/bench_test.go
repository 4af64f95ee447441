package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// BenchmarkTakes takes from uniformly distributed keys in 128 callers, and reports the processor time per take, in this process and in
// Redis.
func BenchmarkTakes(b *testing.B) {
	for _, c := range []struct {
		name  string
		keys  int
		limit engine.Limit
	}{
		{"fixed_window/100k", 100_000, engine.Limit{Algorithm: engine.FixedWindow, Hits: 1 << 30, Window: 60e6, CountRefused: true}},
		{"token_bucket/100k", 100_000, engine.Limit{Algorithm: engine.TokenBucket, Hits: 1 << 20, Window: 60e6, Burst: 1 << 20, Initial: 1 << 20}},
		{"fixed_window/one", 1, engine.Limit{Algorithm: engine.FixedWindow, Hits: 1 << 30, Window: 60e6, CountRefused: true}},
	} {
		for _, callers := range []int{1, 128} {
			b.Run(fmt.Sprintf("%s/%d", c.name, callers), func(b *testing.B) {
				benchmarkTakes(b, callers, c.keys, engine.Limits{c.limit.Prepared()})
			})
		}
	}
}

func benchmarkTakes(b *testing.B, callers, keys int, limits engine.Limits) {
	b.Helper()
	s := redistest.Start(b)
	var batches, ops atomic.Int64
	be := run(b, Config{URL: s.Addr(), OpTimeout: time.Second, Observer: remote.Observer{Batch: func(x remote.Batch) {
		batches.Add(1)
		ops.Add(int64(x.Ops))
	}}}, true)
	before, beforeUs := s.CPU(), cpu()
	b.ReportAllocs()
	b.ResetTimer()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
			defer cancel()
			for left.Add(-1) >= 0 {
				ops := [1]backend.Op{{Key: keyOf(rand.IntN(keys)), Limits: limits, Take: engine.Take{Cost: 1, Count: 1}}}
				be.Apply(ctx, ops[:])
				if ops[0].Err != nil {
					b.Error(ops[0].Err)
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64((s.CPU()-before).Nanoseconds())/float64(b.N), "redis-cpu-ns/op")
	b.ReportMetric(float64((cpu()-beforeUs).Nanoseconds())/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(ops.Load())/float64(batches.Load()), "ops/batch")
}

// cpu returns the processor time of this process.
func cpu() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
