package nearcache_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/backend/nearcache"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// The cost of a remembered refusal, and of a take that the store has to decide, compared with the store alone.
func BenchmarkApply(b *testing.B) {
	for _, c := range []struct {
		name  string
		hits  uint64
		cache bool
	}{{"Remembered", 1, true}, {"Asked", 1 << 31, true}, {"StoreAlone", 1 << 31, false}} {
		b.Run(c.name, func(b *testing.B) {
			var s backend.Backend = memory.New(memory.Config{})
			if c.cache {
				s = nearcache.New(s, nearcache.Config{Refusal: 1<<63 - 1})
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
