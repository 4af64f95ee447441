package redis

import (
	"math/rand/v2"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

const (
	second engine.Micros = 1_000_000
	minute               = 60 * second
	year                 = 365 * 24 * 60 * minute
)

// BenchmarkScripts measures the cost of a call in Redis, including the network, in batches of 32 on 100,000 existing keys.
func BenchmarkScripts(b *testing.B) {
	const most = 1<<32 - 1
	fixed := engine.Limit{Algorithm: engine.FixedWindow, Hits: most, Window: year, CountRefused: true}
	bucket := engine.Limit{Algorithm: engine.TokenBucket, Hits: most, Window: year, Burst: most, Initial: most}
	for _, of := range []struct {
		name    string
		limits  engine.Limits
		penalty *engine.Penalty
	}{
		{name: "fixed_window", limits: engine.Limits{fixed}},
		{name: "token_bucket", limits: engine.Limits{bucket}},
		{name: "token_bucket_1000_per_minute", limits: engine.Limits{
			{Algorithm: engine.TokenBucket, Hits: 1000, Window: minute, Burst: 1000, Initial: 1000},
		}},
		{name: "leaky_bucket", limits: engine.Limits{{Algorithm: engine.LeakyBucket, Hits: 1000, Window: minute, Burst: 1000}}},
		{name: "sliding_window", limits: engine.Limits{
			{Algorithm: engine.SlidingWindow, Hits: most, Window: minute, Precision: 10},
		}},
		{name: "sliding_log", limits: engine.Limits{{Algorithm: engine.SlidingLog, Hits: 10_000, Window: minute}}},
		{name: "concurrency", limits: engine.Limits{{Algorithm: engine.Concurrency, Hits: 10_000, Window: minute}}},
		{name: "list", limits: engine.Limits{
			{Algorithm: engine.FixedWindow, Hits: most, Window: minute, Listed: true},
			{Algorithm: engine.FixedWindow, Hits: most, Window: year, Listed: true},
		}},
		{name: "penalty", limits: engine.Limits{fixed}, penalty: &engine.Penalty{For: second, Max: second, Escalate: 1}},
	} {
		b.Run(of.name, func(b *testing.B) {
			for i := range of.limits {
				of.limits[i] = of.limits[i].Prepared()
			}
			s := redistest.Start(b)
			p := newPlain(b, s, nil)
			ops := make([]backend.Op, 32)
			play := func(key func(i int) int, calls int) {
				for n := 0; n < calls; n += len(ops) {
					for i := range ops {
						ops[i] = backend.Op{Key: keyOf(key(n + i)), Limits: of.limits, Penalty: of.penalty}
						ops[i].Take = engine.Take{Cost: 1, Count: 1}
					}
					p.Apply(b.Context(), ops)
					for i := range ops {
						if ops[i].Err != nil || ops[i].Decision.Admitted != 1 {
							b.Fatalf("%+v: %+v, %v", of.limits, ops[i].Decision, ops[i].Err)
						}
					}
				}
			}
			const keys = 100_000
			play(func(i int) int { return i % keys }, keys)
			before := s.CPU()
			calls := 0
			for b.Loop() {
				play(func(int) int { return rand.IntN(keys) }, len(ops))
				calls += len(ops)
			}
			b.ReportMetric(float64((s.CPU()-before).Nanoseconds())/1e3/float64(calls), "redis-µs/call")
		})
	}
}

// BenchmarkEncode measures the cost in this process of encoding a call.
func BenchmarkEncode(b *testing.B) {
	s, err := newScriptCodec(&Config{})
	if err != nil {
		b.Fatal(err)
	}
	limit := engine.Limit{Algorithm: engine.TokenBucket, Hits: 7, Window: minute, Burst: 10, Initial: 10}
	op := backend.Op{Key: keyOf(1), Limits: engine.Limits{limit.Prepared()}, Take: engine.Take{Cost: 1, Count: 1}}
	items := []*item{{op: op}}
	var cs calls
	b.ReportAllocs()
	for b.Loop() {
		cs.all = cs.all[:0]
		s.encode(&cs, items, true)
	}
}

// BenchmarkDecode measures the cost in this process of decoding the reply to a call.
func BenchmarkDecode(b *testing.B) {
	limit := engine.Limit{Algorithm: engine.FixedWindow, Hits: 100, Window: second}
	op := backend.Op{Limits: engine.Limits{limit}, Take: engine.Take{Cost: 1, Count: 1}}
	text := packedReply(answerDecision, 1, 7, 500_000, 0, 1_800_000_000_000_000, 0, 0, 0, 0)
	b.ReportAllocs()
	for b.Loop() {
		r := answers{text: text}
		if _, err := r.decide(&op, 0, ""); err != nil {
			b.Fatal(err)
		}
	}
}
