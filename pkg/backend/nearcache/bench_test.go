package nearcache_test

import (
	"context"
	"sync"
	"testing"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/backend/nearcache"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// The cost of a remembered refusal, of a take that a lease serves, and of one that the store has to decide, compared
// with the store alone.
func BenchmarkApply(b *testing.B) {
	for _, c := range []struct {
		name          string
		hits          uint64
		cache, leases bool
	}{{"Remembered", 1, true, false}, {"Leased", 1 << 31, true, true}, {"Asked", 1 << 31, true, false}, {"StoreAlone", 1 << 31, false, false}} {
		b.Run(c.name, func(b *testing.B) {
			var s backend.Backend = memory.New(memory.Config{})
			if c.cache {
				near := nearcache.New(s, nearcache.Config{Refusal: 1<<63 - 1})
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
