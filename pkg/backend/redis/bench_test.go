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

const (
	second engine.Micros = 1_000_000
	minute               = 60 * second
	year                 = 365 * 24 * 60 * minute
)

// BenchmarkEncode measures the cost of a call for this process, before it is sent.
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

// BenchmarkDecode measures the cost of the reply to a call for this process.
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

// weighed is an operation and the state that it finds.
type weighed struct {
	name    string
	limits  engine.Limits
	penalty *engine.Penalty
	reserve *engine.Reserve
	made    []backend.Op  // make the state, one after the other
	apart   engine.Micros // between them
	after   engine.Micros // from the last of them to op
	op      backend.Op
}

// weighedOps returns the cheapest and the dearest operations of each family.
func weighedOps() []weighed {
	const many = 1 << 30
	take := func(cost uint64, owner string) backend.Op {
		return backend.Op{Take: engine.Take{Cost: cost, Count: 1, Owner: owner}}
	}
	as := func(mode backend.Mode, op backend.Op) backend.Op {
		op.Mode = mode
		return op
	}
	times := func(n int, op func(i int) backend.Op) []backend.Op {
		ops := make([]backend.Op, n)
		for i := range ops {
			ops[i] = op(i)
		}
		return ops
	}
	same := func(op backend.Op) func(int) backend.Op { return func(int) backend.Op { return op } }
	owned := func(cost uint64) func(int) backend.Op {
		return func(i int) backend.Op { return take(cost, fmt.Sprint("holder ", i)) }
	}
	only := func(l engine.Limit) engine.Limits { return engine.Limits{l} }
	one := take(1, "")
	fixed := engine.Limit{Algorithm: engine.FixedWindow, Hits: many, Window: 60 * minute, CountRefused: true}
	bucket := engine.Limit{Algorithm: engine.TokenBucket, Hits: many, Window: 60 * minute, Burst: many, Initial: many}
	filling := engine.Limit{Algorithm: engine.TokenBucket, Hits: 999, Window: 60 * minute, Burst: 1000, Initial: 500, Debt: 100, FillInterval: second}
	leaky := engine.Limit{Algorithm: engine.LeakyBucket, Hits: many, Window: 60 * minute, Burst: many}
	sliding := engine.Limit{Algorithm: engine.SlidingWindow, Hits: 1000, Window: 60 * minute, Precision: 100}
	log := engine.Limit{Algorithm: engine.SlidingLog, Hits: 10_000, Window: 60 * minute}
	slots := engine.Limit{Algorithm: engine.Concurrency, Hits: 10_000, Window: 60 * minute}
	list := func(of ...engine.Limit) engine.Limits {
		for i := range of {
			of[i].Listed, of[i].CountRefused = true, false
			of[i].Window += engine.Micros(i) * second * 100
		}
		return of
	}
	const full = 10_000
	logged, held, pairs := times(full, same(one)), times(full, owned(1)), times(full/2, owned(2))
	sixteen := func(l engine.Limit) engine.Limits {
		all := make([]engine.Limit, 16)
		for i := range all {
			all[i] = l
		}
		return list(all...)
	}
	reserve := &engine.Reserve{TTL: 10 * minute, Return: true}
	repeats := &engine.Reserve{TTL: 10 * minute, Return: true, Repeats: true}
	booked := func(n int) []backend.Op {
		return times(n, func(i int) backend.Op {
			return backend.Op{Take: engine.Take{Cost: 1, Count: 1, Reservation: reservationOf(i)}}
		})
	}
	penalty := &engine.Penalty{For: second, Max: minute, Escalate: 2}
	return []weighed{
		{name: "fixed window, quick", limits: only(fixed), made: times(1, same(one)), op: one},
		{name: "fixed window, first of a key", limits: only(fixed), op: one},
		{name: "fixed window, look", limits: only(fixed), made: times(1, same(one)), op: as(backend.Peek, one)},
		{name: "fixed window, refunded", limits: only(fixed), made: times(1, same(one)), op: as(backend.Refund, one)},
		{name: "fixed window, reset", limits: only(fixed), made: times(1, same(one)), op: as(backend.Reset, one)},
		{name: "calendar", limits: only(monthly(many, "Europe/Berlin")), made: times(1, same(one)), op: one},
		{name: "bucket, quick", limits: only(bucket), made: times(1, same(one)), op: one},
		{name: "bucket, full path", limits: only(filling), made: times(1, same(take(100, ""))), op: one, after: second},
		{name: "bucket, reset", limits: only(filling), made: times(1, same(take(100, ""))), op: as(backend.Reset, one)},
		{name: "leaky bucket", limits: only(leaky), made: times(1, same(one)), op: one},
		{name: "sliding window, 1 run", limits: only(sliding), made: times(1, same(one)), op: one},
		{name: "sliding window, 100 runs", limits: only(sliding), made: times(100, same(one)), apart: 36 * second, op: one},
		{name: "sliding window, 100 ended", limits: only(sliding), made: times(100, same(one)), apart: 36 * second, after: 59 * minute, op: one},
		{
			name: "sliding window, all refunded", limits: only(sliding), made: times(100, same(take(10, ""))),
			apart: 36 * second, op: as(backend.Refund, take(1000, "")),
		},
		{name: "log, empty", limits: only(log), op: one},
		{name: "log, full, rejected", limits: only(log), made: logged, apart: 1, op: one},
		{name: "log, full, half rejected", limits: only(log), made: logged, apart: 1, op: take(full/2, "")},
		{name: "log, full, half refunded", limits: only(log), made: logged, apart: 1, op: as(backend.Refund, take(full/2, ""))},
		{name: "log, 10,000 ended", limits: only(log), made: logged, apart: 1, after: 60*minute - 2, op: one},
		{name: "log, clock back", limits: only(log), made: logged, apart: 1, after: -second, op: as(backend.Refund, one)},
		{name: "log, reset", limits: only(log), made: logged, apart: 1, op: as(backend.Reset, one)},
		{name: "slots, empty, 10", limits: only(slots), op: take(10, "x")},
		{name: "slots, empty, 10,000", limits: only(slots), op: take(full, "x")},
		{name: "slots, one more", limits: only(slots), made: held[1:], apart: 1, op: take(1, "x")},
		{name: "slots, renewed", limits: only(slots), made: held, apart: 1, op: held[77]},
		{name: "slots, half rejected", limits: only(slots), made: held, apart: 1, op: take(full/2, "x")},
		{name: "slots, released", limits: only(slots), made: held, apart: 1, op: as(backend.Refund, held[4321])},
		{name: "slots, 5,000 of no one released", limits: only(slots), made: logged, apart: 1, op: as(backend.Refund, take(full/2, ""))},
		{name: "slots, pairs, half rejected", limits: only(slots), made: pairs, apart: 1, op: take(full/2, "x")},
		{name: "slots, 10,000 ended", limits: only(slots), made: held, apart: 1, after: 60*minute - 2, op: take(1, "x")},
		{name: "slots, clock back", limits: only(slots), made: held, apart: 1, after: -second, op: as(backend.Refund, held[1])},
		{name: "slots, clock back, look", limits: only(slots), made: held, apart: 1, after: -second, op: as(backend.Peek, one)},
		{name: "slots, reset", limits: only(slots), made: held, apart: 1, op: as(backend.Reset, one)},
		{name: "list of 2 windows", limits: list(fixed, fixed), made: times(1, same(one)), op: one},
		{name: "list of 16 windows", limits: sixteen(fixed), made: times(1, same(one)), op: one},
		{name: "list of 16 buckets", limits: sixteen(bucket), made: times(1, same(one)), op: one},
		{name: "list of 16 sliding windows", limits: sixteen(sliding), made: times(100, same(one)), apart: 36 * second, op: one},
		{name: "reservation", limits: only(fixed), reserve: reserve, made: booked(full - 1), op: booked(full)[full-1]},
		{name: "reservation, sliding", limits: only(sliding), reserve: reserve, made: booked(100), op: booked(101)[100]},
		{name: "settlement", limits: only(fixed), reserve: reserve, made: booked(full), op: as(backend.Settle, booked(5)[4])},
		{name: "20 expire, of 10,000", limits: only(fixed), reserve: reserve, made: booked(full), after: 11 * minute, op: as(backend.Settle, booked(5)[4])},
		{name: "20 expire, bucket", limits: only(bucket), reserve: reserve, made: booked(100), after: 11 * minute, op: as(backend.Settle, booked(5)[4])},
		{name: "20 expire, sliding", limits: only(sliding), reserve: reserve, made: booked(100), after: 11 * minute, op: as(backend.Settle, booked(5)[4])},
		{name: "reservations, reset", limits: only(fixed), reserve: reserve, made: booked(full), op: as(backend.Reset, one)},
		{name: "named reservation", limits: only(fixed), reserve: repeats, made: booked(full - 1), op: booked(full)[full-1]},
		{name: "named settlement", limits: only(fixed), reserve: repeats, made: booked(full), op: as(backend.Settle, booked(5)[4])},
		{name: "named, asked again", limits: only(fixed), reserve: repeats, made: booked(full), op: booked(5)[4]},
		{
			name: "20 named expire, of 10,000", limits: only(fixed), reserve: repeats,
			made: booked(full), after: 11 * minute, op: as(backend.Settle, booked(5)[4]),
		},
		{name: "20 named expire, bucket", limits: only(bucket), reserve: repeats, made: booked(100), after: 11 * minute, op: as(backend.Settle, booked(5)[4])},
		{
			name: "20 named expire, sliding", limits: only(sliding), reserve: repeats,
			made: booked(100), after: 11 * minute, op: as(backend.Settle, booked(5)[4]),
		},
		{name: "named reservations, reset", limits: only(fixed), reserve: repeats, made: booked(full), op: as(backend.Reset, one)},
		{name: "penalty, window", limits: only(fixed), penalty: penalty, made: times(1, same(one)), op: one},
		{name: "penalty, list of 16 buckets", limits: sixteen(bucket), penalty: penalty, made: times(1, same(one)), op: one},
	}
}

// BenchmarkWeights measures what operations cost Redis, in batches on as many counters that exist, from whose ratios the
// weights follow that bound a batch. What makes the states is not measured.
func BenchmarkWeights(b *testing.B) {
	quick := 0.0
	for _, w := range weighedOps() {
		b.Run(w.name, func(b *testing.B) {
			now := engine.Micros(1_800_000_000_000_000)
			s := redistest.Start(b)
			p := newPlain(b, s, func() engine.Micros { return now })
			for i := range w.limits {
				w.limits[i] = w.limits[i].Prepared()
			}
			counters := 128
			if len(w.made) > 100 {
				counters = 8
			}
			apply := func(op backend.Op) {
				ops := make([]backend.Op, counters)
				for i := range ops {
					ops[i] = op
					ops[i].Key, ops[i].Limits, ops[i].Penalty = keyOf(i), w.limits, w.penalty
					ops[i].Reserve = w.reserve
				}
				p.Apply(b.Context(), ops)
				for i := range ops {
					if ops[i].Err != nil {
						b.Fatalf("%+v: %v", ops[i], ops[i].Err)
					}
				}
			}
			var took time.Duration
			n, begin := 0, now
			for b.Loop() {
				if err := p.client.FlushAll(b.Context()).Err(); err != nil {
					b.Fatal(err)
				}
				now = begin
				for i := range w.made {
					now += w.apart
					apply(w.made[i])
				}
				now += w.after
				before := s.CPU()
				apply(w.op)
				took += s.CPU() - before
				n += counters
			}
			each := float64(took.Nanoseconds()) / 1e3 / float64(n)
			if quick == 0 {
				quick = each
			}
			b.ReportMetric(each, "redis-µs/op")
			b.ReportMetric(each/quick, "weight")
		})
	}
}
