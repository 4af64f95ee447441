package redis

import (
	"fmt"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// weighed is an operation and the state that it meets.
type weighed struct {
	name    string
	limits  engine.Limits
	penalty *engine.Penalty
	reserve *engine.Reserve
	made    []backend.Op  // create the state, in order
	apart   engine.Micros // interval between them
	after   engine.Micros // time from the last of them to op
	op      backend.Op
}

// weighedOps returns the cheapest and the most expensive operations of each family.
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
		{name: "sliding window, 1 run", limits: only(sliding), made: times(1, same(one)), op: one},
		{name: "sliding window, 100 runs", limits: only(sliding), made: times(100, same(one)), apart: 36 * second, op: one},
		{name: "sliding window, 100 ended", limits: only(sliding), made: times(100, same(one)), apart: 36 * second, after: 59 * minute, op: one},
		{name: "sliding window, all refunded", limits: only(sliding), made: times(100, same(take(10, ""))), apart: 36 * second, op: as(backend.Refund, take(1000, ""))},
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
		{name: "20 named expire, of 10,000", limits: only(fixed), reserve: repeats, made: booked(full), after: 11 * minute, op: as(backend.Settle, booked(5)[4])},
		{name: "20 named expire, bucket", limits: only(bucket), reserve: repeats, made: booked(100), after: 11 * minute, op: as(backend.Settle, booked(5)[4])},
		{name: "20 named expire, sliding", limits: only(sliding), reserve: repeats, made: booked(100), after: 11 * minute, op: as(backend.Settle, booked(5)[4])},
		{name: "named reservations, reset", limits: only(fixed), reserve: repeats, made: booked(full), op: as(backend.Reset, one)},
		{name: "penalty, window", limits: only(fixed), penalty: penalty, made: times(1, same(one)), op: one},
		{name: "penalty, list of 16 buckets", limits: sixteen(bucket), penalty: penalty, made: times(1, same(one)), op: one},
	}
}

// BenchmarkWeights measures the cost of operations in Redis, in batches on as many existing counters. The weights that bound a batch
// follow from the ratios. Creating the states is not measured.
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
