package redis

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// gated is the definition of a counter.
type gated struct {
	limits  engine.Limits
	penalty *engine.Penalty
}

// eachCounter returns a counter for each algorithm and option, alone, in a list and behind a penalty.
func eachCounter() (all []gated) {
	limits := eachLimit()
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		l := limits[name].Prepared()
		all = append(all, gated{limits: engine.Limits{l}},
			gated{limits: listOf(l, engine.Limit{Algorithm: engine.FixedWindow, Hits: 12, Window: second})},
			gated{limits: engine.Limits{l}, penalty: &engine.Penalty{For: second, Max: minute, On: engine.OnReached, Escalate: 2}})
	}
	return all
}

// listOf returns a list of limits.
func listOf(limits ...engine.Limit) engine.Limits {
	for i := range limits {
		limits[i].Listed, limits[i].CountRefused = true, false
		limits[i] = limits[i].Prepared()
	}
	return limits
}

// randomOps draws operations on few keys, so that batches repeat some of them.
func randomOps(r *rand.Rand, counters []gated, n int) []backend.Op {
	ops := make([]backend.Op, n)
	for i := range ops {
		key := r.IntN(3 * len(counters))
		c := counters[key%len(counters)]
		op := backend.Op{Key: keyOf(key), Limits: c.limits, Penalty: c.penalty}
		op.Take = engine.Take{Cost: []uint64{1, 1, 1, 2, 3, 11}[r.IntN(6)], Count: 1 + r.Uint64N(3), Owner: []string{"", "ann"}[r.IntN(2)]}
		queues := slices.ContainsFunc(c.limits, func(l engine.Limit) bool { return l.Algorithm.Queues() })
		if queues || op.Take.Owner != "" {
			op.Take.Count = 1
		}
		switch r.IntN(10) {
		case 0:
			op.Mode = backend.Peek
		case 1:
			op.Take.Cost = 0
		case 2:
			op.Mode, op.Take.Count = backend.Refund, 1
		case 3:
			op.Mode, op.Take = []backend.Mode{backend.Reset, backend.ForceReset}[r.IntN(2)], engine.Take{}
		}
		ops[i] = op
	}
	return ops
}

// TestBatches runs sequences of batches with mixed algorithms and modes on the script and on pkg/engine in memory. With
// -rapid.checks=500, each counter gets 50,000 operations in batches of each size.
func TestBatches(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	counters := eachCounter()
	checks := 5
	flag.Visit(func(f *flag.Flag) {
		if f.Name == "rapid.checks" {
			checks, _ = strconv.Atoi(f.Value.String())
		}
	})
	for _, size := range []int{1, 2, 7, 128} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			t.Parallel()
			now := engine.Micros(1_800_000_000_000_000)
			clock := func() engine.Micros { return now }
			p, oracle := newPlain(t, s, clock), memory.New(memory.Config{Now: clock})
			r := rand.New(rand.NewPCG(uint64(size), 1))
			for played := 0; played < checks*100*len(counters); played += size {
				ops := randomOps(r, counters, size)
				want := slices.Clone(ops)
				oracle.Apply(t.Context(), want)
				p.Apply(t.Context(), ops)
				for i := range ops {
					if ops[i].Err != nil || want[i].Err != nil {
						t.Fatalf("%+v: %v, in memory %v", ops[i], ops[i].Err, want[i].Err)
					}
					if diff := cmp.Diff(want[i].Decision, ops[i].Decision); diff != "" {
						t.Fatalf("after %d, op %d of a batch: %+v: (-in memory +got):\n%s", played, i, ops[i], diff)
					}
				}
				now += engine.Micros([]int64{0, 0, 1, 1000, 100_000, 1_000_000, 30_000_000}[r.IntN(7)] * r.Int64N(3))
			}
		})
	}
}

// TestBatchIsOneCall checks that the queue is sent as one call, regardless of its operations, unless that would take Redis too long.
func TestBatchIsOneCall(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	codec, err := newScriptCodec(&Config{})
	if err != nil {
		t.Fatal(err)
	}
	var items []*item
	for i, c := range eachCounter() {
		op := backend.Op{Key: keyOf(i), Limits: c.limits, Penalty: c.penalty, Take: engine.Take{Cost: 1, Count: 1}}
		items = append(items, &item{op: op})
	}
	var cs calls
	if codec.encode(&cs, items, true); len(cs.all) != 1 {
		t.Errorf("one of each kind are %d calls, want 1", len(cs.all))
	}
	cs.all = cs.all[:0]
	if codec.encode(&cs, items, false); len(cs.all) != len(items) {
		t.Errorf("apart they are %d calls, want %d", len(cs.all), len(items))
	}

	heavy := engine.Limit{Algorithm: engine.SlidingLog, Hits: 10_000, Window: minute}
	for _, it := range items {
		it.op.Limits, it.op.Penalty = listOf(heavy, heavy, heavy, heavy), nil
	}
	cs.all = cs.all[:0]
	if codec.encode(&cs, items, true); len(cs.all) < 2 || slices.ContainsFunc(cs.all, func(c *call) bool { return c.weight > maxWeight }) {
		t.Errorf("%d lists of logs are %d calls, of which one is too heavy", len(items), len(cs.all))
	}

	b := run(t, Config{URL: s.Addr(), OpTimeout: slow, DialTimeout: slow}, true)
	s.CLI("CONFIG", "RESETSTAT")
	ops := make([]backend.Op, 100)
	for i := range ops {
		ops[i] = backend.Op{Key: keyOf(i), Limits: lasting(5), Mode: []backend.Mode{backend.Take, backend.Peek}[i%2], Take: engine.Take{Cost: 1, Count: 1}}
	}
	b.Apply(t.Context(), ops)
	for i := range ops {
		if ops[i].Err != nil || ops[i].Decision.Left != 5 {
			t.Errorf("op %d: %+v, %v", i, ops[i].Decision, ops[i].Err)
		}
	}
	// One for each of two writers, or a few more if these run while the operations are being queued.
	stats, calls := s.CLI("INFO", "commandstats"), 0
	if _, rest, ok := strings.Cut(stats, "cmdstat_evalsha:calls="); ok {
		_, _ = fmt.Sscanf(rest, "%d,", &calls)
	}
	if calls < 1 || calls > len(ops)/10 {
		t.Errorf("100 takes and looks were sent as %d calls, want one or a few:\n%s", calls, stats)
	}
}

// TestBatchIsShort checks that the queue is sent as several batches if one would take Redis too long and block others, and that merged
// operations count once.
func TestBatchIsShort(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	slots := engine.Limits{{Algorithm: engine.Concurrency, Hits: 10_000, Window: minute}}
	few := int64(maxWeight/weightOf(&slots[0]) + 1)
	for _, c := range []struct {
		mode         backend.Mode
		keys         int
		want, merged int64
	}{{backend.Take, 1, 100, 99}, {backend.Take, 100, few, 0}, {backend.Reset, 100, few, 0}} {
		var longest, merged atomic.Int64
		observe := func(r remote.Batch) {
			merged.Add(int64(r.Merged))
			for n := longest.Load(); int64(r.Ops) > n && !longest.CompareAndSwap(n, int64(r.Ops)); n = longest.Load() {
			}
		}
		b := opened(t, Config{URL: s.Addr(), OpTimeout: slow, DialTimeout: slow, Observer: remote.Observer{Batch: observe}})
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				ops := []backend.Op{{Key: keyOf(i % c.keys), Mode: c.mode, Limits: slots, Take: engine.Take{Cost: 1, Count: 1}}}
				if b.Apply(t.Context(), ops); ops[0].Err != nil {
					t.Errorf("op %d of %d keys: %v", i, c.keys, ops[0].Err)
				}
			})
		}
		testkit.Eventually(t, "all wait", func() bool { return waiting(b) == 100 })
		start(t, b)
		wg.Wait()
		testkit.Eventually(t, "word of what was merged", func() bool { return merged.Load() == c.merged }) // which comes after the answers
		if got := longest.Load(); got != c.want {
			t.Errorf("of 100 operations of mode %d on slots of %d keys the longest batch has %d, want %d", c.mode, c.keys, got, c.want)
		}
	}
}

// TestLooksWriteNothing checks that a server that accepts no writes answers a batch of checks: one that is out of memory, and a replica.
func TestLooksWriteNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := newPlain(t, s, nil)
	var ops []backend.Op
	for i, c := range eachCounter() {
		ops = append(ops, backend.Op{Key: keyOf(i), Limits: c.limits, Penalty: c.penalty, Take: engine.Take{Cost: 1, Count: 1}})
	}
	p.Apply(t.Context(), ops)
	for i := range ops {
		ops[i].Mode = backend.Peek
	}
	look := func(of string) {
		t.Helper()
		p.Apply(t.Context(), ops)
		for i := range ops {
			if ops[i].Err != nil {
				t.Errorf("%s, look %d: %v", of, i, ops[i].Err)
			}
		}
	}
	s.CLI("CONFIG", "SET", "maxmemory", "1")
	look("out of memory")
	s.CLI("CONFIG", "SET", "maxmemory", "0")
	s.CLI("REPLICAOF", "127.0.0.1", "1")
	look("a replica")
}

// TestF27_WrongTypeFailsAlone checks that in a batch only operations on keys of another type fail.
func TestF27_WrongTypeFailsAlone(t *testing.T) {
	t.Parallel()
	p := newPlain(t, redistest.Start(t), nil)
	counters := eachCounter()
	for bad := range counters {
		if err := p.client.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		var ops []backend.Op
		for range 2 {
			for i, c := range counters {
				ops = append(ops, backend.Op{Key: keyOf(i), Limits: c.limits, Penalty: c.penalty, Take: engine.Take{Cost: 1, Count: 1}})
			}
		}
		if err := p.client.SAdd(t.Context(), p.keysOf(&ops[bad])[0], "a").Err(); err != nil {
			t.Fatal(err)
		}
		p.Apply(t.Context(), ops)
		for i := range ops {
			e, failed := ops[i].Err.(*remote.Error) //nolint:errorlint // it is never wrapped
			if want := i%len(counters) == bad; failed != want || failed && e.Code != "WRONGTYPE" || !failed && ops[i].Decision.Admitted != 1 {
				t.Errorf("with a set in place of counter %d, op %d: %+v, %v", bad, i, ops[i].Decision, ops[i].Err)
			}
		}
	}
}

// TestF27_UndoingFailsAlone checks that only an operation fails that cannot undo its addition for lack of a permission.
func TestF27_UndoingFailsAlone(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := newPlain(t, s, nil)
	s.CLI("ACL", "SETUSER", "default", "-unlink")
	limits := engine.Limits{{Algorithm: engine.FixedWindow, Hits: 10, Window: 7e13}}
	var ops []backend.Op
	for i, cost := range []uint64{1, 11, 1} { // the second one exceeds the limit, and removes the key
		ops = append(ops, backend.Op{Key: keyOf(i), Limits: limits, Take: engine.Take{Cost: cost, Count: 1}})
	}
	p.Apply(t.Context(), ops)
	for i, want := range []remote.Class{"", ClassNoAuth, ""} {
		if got := class(ops[i]); got != want {
			t.Errorf("op %d: %v, want class %q", i, ops[i].Err, want)
		}
	}
}

// TestF08_ScriptLostInBatches checks that callers do not notice if Redis loses the script, and that each take counts once.
func TestF08_ScriptLostInBatches(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := run(t, Config{URL: s.Addr(), OpTimeout: slow, DialTimeout: slow}, true)
	const rounds, callers, keys = 20, 8, 40
	for range rounds {
		s.CLI("SCRIPT", "FLUSH")
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				ops := make([]backend.Op, keys)
				for i := range ops {
					ops[i] = backend.Op{Key: keyOf(i), Limits: lasting(1e6), Take: engine.Take{Cost: 2, Count: 1}}
				}
				b.Apply(t.Context(), ops)
				for i := range ops {
					if ops[i].Err != nil {
						t.Errorf("op %d: %v", i, ops[i].Err)
					}
				}
			})
		}
		wg.Wait()
	}
	for i := range keys {
		if left := one(b, i).Decision.Left; left != 1e6-2*rounds*callers {
			t.Errorf("%d are left of key %d, want %d", left, i, 1_000_000-2*rounds*callers)
		}
	}
}

// TestStatesOfOtherVersions checks that states have the format of earlier versions.
func TestStatesOfOtherVersions(t *testing.T) {
	t.Parallel()
	now := engine.Micros(1_800_000_000_000_000)
	p := newPlain(t, redistest.Start(t), func() engine.Micros { return now })
	limits := map[string]engine.Limit{
		"fixed":  {Algorithm: engine.FixedWindow, Hits: 10, Window: minute, CountRefused: true},
		"bucket": {Algorithm: engine.TokenBucket, Hits: 10, Window: minute, Burst: 10, Initial: 10},
		"leaky":  {Algorithm: engine.LeakyBucket, Hits: 10, Window: minute, Burst: 10},
	}
	written := map[string]string{
		"fixed": "1800000000000003",
		// at, n, part, unit, stop, kept
		"bucket": packedReply(18e14, 3, 0, 6e6, 18e14+18e6, 18e14+36e6+1e3*injectedSlack),
		"leaky":  packedReply(18e14, 3, 0, 6e6, 18e14+18e6, 18e14+36e6+1e3*injectedSlack),
	}
	for name, l := range limits {
		op := backend.Op{Key: keyOf(1), Limits: engine.Limits{l.Prepared()}, Take: engine.Take{Cost: 3, Count: 1}}
		key := p.keysOf(&op)[0]
		p.one(t, op)
		if got := p.client.Get(t.Context(), key).Val(); got != written[name] {
			t.Errorf("%s: 3 hits are %q, want %q", name, got, written[name])
		}
		if d := p.one(t, op); d.Left != 7 || d.Admitted != 1 {
			t.Errorf("%s: after 3 hits %+v", name, d)
		}
		if got := p.client.StrLen(t.Context(), key).Val(); got != int64(len(written[name])) {
			t.Errorf("%s: 6 hits are %d bytes, want %d", name, got, len(written[name]))
		}
	}
}

// TestAlone checks that a single take uses its own script, even if the server has lost it, and that undecided takes are decided by the
// general script.
func TestAlone(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := run(t, Config{URL: s.Addr(), OpTimeout: slow, DialTimeout: slow}, true)
	op := backend.Op{Key: keyOf(1), Limits: lasting(5), Take: engine.Take{Cost: 1, Count: 1}}
	key := b.main.codec.route(&op) + op.Limits[0].Slot().String()
	for i, c := range []struct {
		before string // value of the key
		flush  bool
		left   uint64
	}{
		{"", false, 5},
		{"", false, 4},
		{"", true, 3},
		{"x", false, 5},
		{"x", true, 5},
		{"9007199254740992", false, 0},
	} {
		if c.before != "" {
			s.CLI("SET", key, c.before, "EX", "60")
		}
		if c.flush {
			s.CLI("SCRIPT", "FLUSH")
		}
		ops := []backend.Op{op}
		if b.Apply(t.Context(), ops); ops[0].Err != nil || ops[0].Decision.Left != c.left {
			t.Errorf("%d: %d left, %v; want %d", i, ops[0].Decision.Left, ops[0].Err, c.left)
		}
	}
	if got := s.CLI("SCRIPT", "EXISTS", b.main.codec.(*scriptCodec).alone.sha); got != "1" {
		t.Errorf("the script of its own was not called: %s", got)
	}
}
