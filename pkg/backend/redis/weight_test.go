package redis

import (
	"fmt"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// heavy is an operation on a counter of which as much is stored as any can have.
type heavy struct {
	name  string
	limit engine.Limit
	owner func(i int) string
	op    backend.Op
}

// heavies has the operations that cost the most, for each family whose states grow.
func heavies() []heavy {
	const most = 10_000
	nobody := func(int) string { return "" }
	own := func(i int) string { return fmt.Sprintf("%016d", i) }
	log := engine.Limit{Algorithm: engine.SlidingLog, Hits: most, Window: 60 * minute}
	window := engine.Limit{Algorithm: engine.SlidingWindow, Hits: 1 << 31, Window: 60 * minute, Precision: 1000}
	slots := engine.Limit{Algorithm: engine.Concurrency, Hits: most, Window: 60 * minute}
	take := func(cost uint64, owner string) backend.Op {
		return backend.Op{Take: engine.Take{Cost: cost, Count: 1, Owner: owner}}
	}
	give := func(cost uint64, owner string) backend.Op {
		op := take(cost, owner)
		op.Mode = backend.Give
		return op
	}
	return []heavy{
		{"fixed/refused", engine.Limit{Algorithm: engine.FixedWindow, Hits: 5, Window: 1 << 48}, nobody, take(1, "")},
		{"calendar/refused", monthly(5, "Europe/Berlin"), nobody, take(1, "")},
		{"bucket/refused", engine.Limit{Algorithm: engine.TokenBucket, Hits: 7, Window: 1 << 48, Burst: 7, Initial: 7}, nobody, take(1, "")},
		{"queue/refused", engine.Limit{Algorithm: engine.LeakyBucket, Hits: 7, Window: 1 << 48, Burst: 7}, nobody, take(1, "")},
		{"log/take", log, nobody, take(1, "")},
		{"log/refused", log, nobody, take(5000, "")},
		{"log/give", log, nobody, give(1, "")},
		{"log/give half", log, nobody, give(most/2, "")},
		{"window/take", window, nobody, take(1, "")},
		{"window/give", window, nobody, give(1, "")},
		{"slots/take", slots, own, take(1, own(1))},
		{"slots/refused", slots, own, take(5000, "")},
		{"slots/give", slots, own, give(1, own(77))},
		{"slots/give nobody's", slots, own, give(1, "")},
	}
}

// BenchmarkWeights measures what the operations that cost the most cost Redis, in batches of 32. The table in weight.go
// has it from here.
func BenchmarkWeights(b *testing.B) {
	for _, h := range heavies() {
		b.Run(h.name, func(b *testing.B) {
			now := engine.Micros(time.Now().UnixMicro())
			s := redistest.Start(b)
			p := newPlain(b, s, func() engine.Micros { return now })
			limits := engine.Limits{h.limit.Prepared()}
			const keys = 8
			for i := range 10_000 {
				ops := make([]backend.Op, keys)
				for k := range ops {
					ops[k] = backend.Op{Key: keyOf(k), Limits: limits, Take: engine.Take{Cost: 1, Count: 1, Owner: h.owner(i)}}
				}
				p.Apply(b.Context(), ops)
				now += 360_000 - 1
			}
			before, calls := s.CPU(), 0
			for b.Loop() {
				ops := make([]backend.Op, 32)
				for i := range ops {
					ops[i] = h.op
					ops[i].Key, ops[i].Limits = keyOf(i%keys), limits
				}
				p.Apply(b.Context(), ops)
				for i := range ops {
					if ops[i].Err != nil {
						b.Fatal(ops[i].Err)
					}
				}
				calls += len(ops)
			}
			b.ReportMetric(float64((s.CPU()-before).Nanoseconds())/1e3/float64(calls), "redis-µs/call")
		})
	}
}
