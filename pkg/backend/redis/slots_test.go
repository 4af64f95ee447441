package redis

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// TestManySlots makes takes, checks and releases of many holders, with alternating settings and a clock that jumps, and compares the
// decisions with the engine's.
func TestManySlots(t *testing.T) {
	const most = 2_000
	s := redistest.Start(t)
	for name, owners := range map[string]int{"owners": most, "few owners": 150, "nobody": 0, "mixed": -most} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, uint64(len(name))))
			now := engine.Micros(1_800_000_000_000_000)
			p := newPlain(t, s, func() engine.Micros { return now })
			var state engine.State
			fields := int64(0)
			for i := range 2000 {
				ops, want := make([]backend.Op, 1+random.IntN(6)), make([]engine.Decision, 6)
				for j := range ops {
					l := engine.Limit{Algorithm: engine.Concurrency, Hits: most, Window: minute}
					if random.IntN(20) == 0 {
						l.Hits, l.Window = 1+random.Uint64N(most), second*engine.Micros(1+random.IntN(120))
					}
					op := backend.Op{Key: keyOf(0), Limits: engine.Limits{l}, Take: engine.Take{Cost: 1, Count: 1}}
					switch random.IntN(300) {
					case 0:
						op.Take.Cost = 1 + random.Uint64N(most)
					case 1, 2, 3:
						op.Take.Cost = 1 + random.Uint64N(5)
					}
					if owners > 0 || owners < 0 && random.IntN(2) == 0 {
						op.Take.Owner = fmt.Sprint(random.IntN(max(owners, -owners)))
					}
					switch n := random.IntN(10); {
					case n < 2 || i%500 > 420 && n < 8: // at times, more are released than taken
						op.Mode = backend.Refund
						want[j] = op.Limits.Refund([]*engine.State{&state}, now, op.Take)
					case n == 9:
						op.Mode = backend.Peek
						want[j] = op.Limits.Peek([]*engine.State{&state}, now, op.Take)
					default:
						want[j] = op.Limits.Take([]*engine.State{&state}, now, op.Take)
					}
					ops[j] = op
				}
				p.Apply(t.Context(), ops)
				fields = max(fields, p.client.HLen(t.Context(), string(p.base(nil, &ops[0]))+ops[0].Limits[0].Slot().String()).Val())
				for j := range ops {
					if diff := cmp.Diff(want[j], ops[j].Decision); diff != "" || ops[j].Err != nil {
						t.Fatalf("batch %d, %d: %+v: %v (-engine's +got):\n%s", i, j, ops[j], ops[j].Err, diff)
					}
				}
				switch random.IntN(200) {
				case 0:
					now += engine.Micros(random.IntN(int(minute)))
				case 1:
					now -= min(engine.Micros(random.IntN(int(10*second))), max(0, state.Expires()-now))
				case 2:
				default:
					now += engine.Micros(random.IntN(int(second / 40)))
				}
			}
			if fields < 6 {
				t.Errorf("the state had no more than %d fields: it was in few blocks", fields)
			}
		})
	}
}

// TestF28_SlotsCostLittle checks that 10,000 slots of one holder cost Redis as much as 10. With 10,000 records, each with a holder or
// ownerless, a call must cost at most ten times as much as with none, and a record must take at most 200 bytes. The measured values are
// 1, 2 to 6, and 155 or, for ownerless ones, 37.
func TestF28_SlotsCostLittle(t *testing.T) {
	const most, calls = 10_000, 100
	s := redistest.Start(t)
	now := engine.Micros(1_800_000_000_000_000)
	p := newPlain(t, s, func() engine.Micros { return now })
	limits := engine.Limits{{Algorithm: engine.Concurrency, Hits: most, Window: 60 * minute}}
	play := func(op backend.Op, owner func(i int) string, keys, n int) {
		t.Helper()
		for from := 0; from < n; from += calls {
			now++
			ops := make([]backend.Op, min(calls, n-from))
			for i := range ops {
				ops[i] = op
				ops[i].Key, ops[i].Limits, ops[i].Take.Count, ops[i].Take.Owner = keyOf((from+i)%keys), limits, 1, owner(from+i)
			}
			p.Apply(t.Context(), ops)
			for i := range ops {
				if ops[i].Err != nil {
					t.Fatalf("%+v: %v", ops[i], ops[i].Err)
				}
			}
		}
	}
	cost := func(mode backend.Mode, cost uint64) backend.Op {
		return backend.Op{Mode: mode, Take: engine.Take{Cost: cost}}
	}
	// least returns the processor time of the cheapest of several runs of the calls.
	least := func(before func(), calls func(run int)) time.Duration {
		t.Helper()
		fastest := time.Duration(1 << 62)
		for run := range 4 {
			before()
			begun := s.CPU()
			calls(run)
			fastest = min(fastest, s.CPU()-begun)
		}
		return fastest
	}
	flush := func() {
		if err := p.client.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	ann := func(int) string { return "ann" }
	nobody := func(int) string { return "" }
	holder := func(i int) string { return fmt.Sprint("holder ", i) }
	other := func(i int) string { return fmt.Sprint("another ", i) }
	few := least(flush, func(int) { play(cost(backend.Take, 10), ann, calls, calls) })
	many := least(flush, func(int) { play(cost(backend.Take, most), ann, calls, calls) })
	t.Logf("%d slots cost %.2f times what 10 cost", most, float64(many)/float64(few))
	if many > 3*few {
		t.Errorf("%d slots cost %v, and 10 cost %v", most, many, few)
	}
	none := least(flush, func(int) { play(cost(backend.Take, 1), ann, calls, calls) })
	for _, owner := range []func(int) string{holder, nobody} {
		flush()
		empty := p.info(t, "memory", "used_memory")
		for i := range most { // one by one, because ownerless slots taken together are one record
			play(cost(backend.Take, 1), func(int) string { return owner(i) }, 1, 1)
		}
		used := p.info(t, "memory", "used_memory") - empty
		t.Logf("%d records take %d bytes each", most, used/most)
		if used > 200*most || used < 20*most {
			t.Errorf("%d records take %d bytes each, want 20 to 200", most, used/most)
		}
		for _, of := range []struct {
			name string
			op   backend.Op
			who  func(int) string
			back engine.Micros
		}{
			{"a look", cost(backend.Peek, 1), other, 0},
			{"a renewal", cost(backend.Take, 1), owner, 0},
			{"a rejection", cost(backend.Take, 1), other, 0},
			{"a rejection of half", cost(backend.Take, most/2), other, 0},
			{"a rejection of all", cost(backend.Take, most), other, 0},
			{"a look after the clock went back", cost(backend.Peek, 1), other, second},
			{"a rejection after the clock went back", cost(backend.Take, 1), other, second},
			{"a renewal after the clock went back", cost(backend.Take, 1), owner, second},
			{"a release", cost(backend.Refund, 1), owner, 0},
			{"a take", cost(backend.Take, 1), other, 0},
			{"a release by no one", cost(backend.Refund, 1), nobody, 0},
		} {
			took := least(func() { now -= of.back }, func(run int) {
				play(of.op, func(i int) string { return of.who(i + run*calls) }, 1, calls)
			})
			t.Logf("%s with %d records costs %.2f times what a take costs with none", of.name, most, float64(took)/float64(none))
			if took > 10*none {
				t.Errorf("%s costs %v with %d holders, and a take %v with none", of.name, took/calls, most, none/calls)
			}
		}
		freed := p.info(t, "memory", "lazyfreed_objects")
		play(cost(backend.Reset, 0), nobody, 1, 1)
		testkit.Eventually(t, "Redis frees what a reset removed aside from its calls", func() bool {
			return p.info(t, "memory", "lazyfreed_objects") > freed
		})
	}
}

// info returns a number from INFO.
func (p *plain) info(t *testing.T, section, name string) (n int64) {
	t.Helper()
	if _, err := fmt.Sscan(infoField(p.client.Info(t.Context(), section).Val(), name), &n); err != nil {
		t.Fatal(err)
	}
	return n
}
