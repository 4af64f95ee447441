package nearcache_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/backend/nearcache"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// BenchmarkApply compares a remembered rejection, a take from a lease, and a take decided by the store with the store alone.
func BenchmarkApply(b *testing.B) {
	for _, c := range []struct {
		name          string
		hits          uint64
		cache, leases bool
	}{{"Remembered", 1, true, false}, {"Leased", 1 << 31, true, true}, {"Asked", 1 << 31, true, false}, {"StoreAlone", 1 << 31, false, false}} {
		b.Run(c.name, func(b *testing.B) {
			var s backend.Backend = memory.New(memory.Config{})
			if c.cache {
				near := nearcache.New(s, nearcache.Config{Rejection: 1<<63 - 1})
				s = near
				if c.leases {
					ctx, stop := context.WithCancel(b.Context())
					var wg sync.WaitGroup
					wg.Go(func() { _ = near.Run(ctx) })
					defer wg.Wait()
					defer stop()
				}
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				ops := []backend.Op{{Key: keyOf(1), Limits: engine.Limits{bucket(c.hits, hour)}, Take: engine.Take{Cost: 1, Count: 1}}}
				for pb.Next() {
					s.Apply(b.Context(), ops)
				}
			})
		})
	}
}

// free is a store that admits everything at almost no cost.
type free struct{ asked, refills atomic.Uint64 }

func (f *free) Apply(_ context.Context, ops []backend.Op) {
	for i := range ops {
		op := &ops[i]
		op.Decision = engine.Decision{Admitted: op.Take.Count + op.Take.Extra, Left: 90_000, ResetAfter: 3_000_000_000_000, Window: 1}
		op.Err = nil
		if op.Take.Extra > 0 {
			f.refills.Add(1)
		}
	}
	f.asked.Add(uint64(len(ops)))
}

func (f *free) Close() error { return nil }

// BenchmarkApplyWarm measures a call with 16 descriptors of 1,000 values each, on a clock on which each value comes 21 times a second.
// Between calls it touches memory, as the rest of a server does.
func BenchmarkApplyWarm(b *testing.B) {
	for name, leases := range map[string]bool{"Unleased": false, "Leased": true} {
		b.Run(name, func(b *testing.B) {
			var clock atomic.Int64
			s := new(free)
			near := nearcache.New(s, nearcache.Config{NoLeases: !leases, Now: func() engine.Micros { return engine.Micros(clock.Load()) }})
			ctx, stop := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			wg.Go(func() { _ = near.Run(ctx) })
			defer wg.Wait()
			defer stop()
			rng := rand.New(rand.NewPCG(1, 2))
			ops := make([]backend.Op, 16)
			limits := engine.Limits{plain(100_000, hour)}
			rest := make([]byte, 8<<20)
			call := func(i int) {
				for d := range ops {
					ops[d] = backend.Op{Key: keyOf(uint64(d*1000 + rng.IntN(1000))), Limits: limits, Take: engine.Take{Cost: 1, Count: 1}}
				}
				clock.Add(48)
				near.Apply(ctx, ops)
				for k := range 200 {
					rest[(i*200+k)*64%len(rest)]++
				}
			}
			for i := range 60_000 {
				call(i)
			}
			b.ReportAllocs()
			b.ResetTimer()
			before := near.Stats()
			r0, a0 := s.refills.Load(), s.asked.Load()
			for i := range b.N {
				call(i)
			}
			st := near.Stats()
			b.ReportMetric(float64(st.Hits-before.Hits)/float64(16*b.N), "leased/op")
			b.ReportMetric(float64(s.refills.Load()-r0)/float64(b.N), "refills/call")
			b.ReportMetric(float64(s.asked.Load()-a0)/float64(b.N), "asked/call")
		})
	}
}
