package redis

import (
	"context"
	_ "embed"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/backendtest"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// plain is the simplest backend that runs the script: a pipeline per Apply, without deadlines and merging. If its tests fail, the script
// is wrong.
type plain struct {
	*scriptCodec

	client *redis.Client
	batch  int // maximum number of operations in a batch; 0 means no maximum
}

// newPlain returns a backend on s whose keys begin with the test's name. Without a clock, it uses that of Redis.
func newPlain(tb testing.TB, s *redistest.Server, now func() engine.Micros) *plain {
	tb.Helper()
	codec, err := newScriptCodec(&Config{KeyPrefix: tb.Name() + ":", Now: now})
	if err != nil {
		tb.Fatal(err)
	}
	p := &plain{scriptCodec: codec, client: s.Client()}
	if got, err := p.client.ScriptLoad(tb.Context(), codec.script.text).Result(); err != nil || got != codec.script.sha {
		tb.Fatalf("loading the script: %q, %v, want %q", got, err, codec.script.sha)
	}
	return p
}

// Apply decides ops with one pipeline per batch.
func (p *plain) Apply(ctx context.Context, ops []backend.Op) {
	size := p.batch
	if size == 0 {
		size = len(ops)
	}
	for len(ops) > 0 {
		p.apply(ctx, ops[:min(size, len(ops))])
		ops = ops[min(size, len(ops)):]
	}
}

func (p *plain) apply(ctx context.Context, ops []backend.Op) {
	items, last := make([]*item, len(ops)), map[backend.Key]*item{}
	for i := range ops {
		items[i] = &item{op: ops[i], head: head{after: last[ops[i].Key]}}
		last[ops[i].Key] = items[i]
	}
	var cs calls
	p.encode(&cs, slices.Clone(items), true) //nolint:contextcheck // go-redis stores the context of a command, but does not use it
	p.send(ctx, cs.all)
	for _, c := range cs.all {
		for c.err != nil && (c.err.Code == codeUndecided || c.err.Code == "NOSCRIPT") { // twice if an unknown script, once known, cannot decide
			p.again(c) //nolint:contextcheck // as above
			p.send(ctx, []*call{c})
		}
		if c.err == nil && !c.proves() {
			c.err = classify("", errBehind)
		}
		p.decode(c, "")
	}
	for i, it := range items {
		ops[i].Decision, ops[i].Err = it.op.Decision, nil
		if it.err != nil {
			ops[i].Err = it.err
		}
	}
}

func (p *plain) send(ctx context.Context, calls []*call) {
	pipe := p.client.Pipeline()
	for _, c := range calls {
		_ = pipe.Process(ctx, c.sent[0]) // only buffers
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for _, c := range calls {
		c.replied("")
	}
}

// Close does nothing: the server owns the client.
func (p *plain) Close() error { return nil }

// keysOf returns the keys of op.
func (p *plain) keysOf(op *backend.Op) (all []string) {
	var c call
	p.keys(&c, op)
	for _, k := range c.keys {
		all = append(all, string(k.b))
	}
	return all
}

// one applies one op.
func (p *plain) one(tb testing.TB, op backend.Op) engine.Decision {
	tb.Helper()
	ops := []backend.Op{op}
	p.Apply(tb.Context(), ops)
	if ops[0].Err != nil {
		tb.Fatalf("%+v: %v", op, ops[0].Err)
	}
	return ops[0].Decision
}

// stored returns the names of all keys in Redis.
func (p *plain) stored(tb testing.TB) []string {
	tb.Helper()
	keys, err := p.client.Keys(tb.Context(), "*").Result()
	if err != nil {
		tb.Fatal(err)
	}
	return keys
}

// TestScripts compares the scripts with the engine and its twin. With -rapid.checks=500, each algorithm gets 500 sequences of 100 calls.
// Afterwards, every key has an expiry, and no name is long.
func TestScripts(t *testing.T) {
	s := redistest.Start(t)
	backendtest.Run(t, backendtest.Harness{Takes: 2000, Open: func(tb testing.TB, now func() engine.Micros) backend.Backend {
		tb.Helper()
		return newPlain(tb, s, now)
	}})
	p := newPlain(t, s, nil)
	keys := p.stored(t)
	if len(keys) == 0 {
		t.Fatal("the suite has left no keys")
	}
	ttls := make([]*redis.DurationCmd, len(keys))
	if _, err := p.client.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for i, key := range keys {
			ttls[i] = pipe.PTTL(t.Context(), key)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for i, key := range keys {
		if ttls[i].Val() == -1 {
			t.Errorf("key %s never expires", key)
		}
		if _, name, _ := strings.Cut(key, ":"); len(name) > 80 {
			t.Errorf("key %s has %d bytes after its prefix, want at most 80", key, len(name))
		}
	}
}

// eachLimit returns a limit for each algorithm and option.
func eachLimit() map[string]engine.Limit {
	return map[string]engine.Limit{
		"fixed_window":       {Algorithm: engine.FixedWindow, Hits: 10, Window: minute, CountRefused: true},
		"fixed_window first": {Algorithm: engine.FixedWindow, Hits: 10, Window: minute, Align: engine.AlignFirst},
		"fixed_window month": monthly(10, "Europe/Berlin"),
		"sliding_window":     {Algorithm: engine.SlidingWindow, Hits: 10, Window: minute, Precision: 10},
		"sliding_log":        {Algorithm: engine.SlidingLog, Hits: 10, Window: minute},
		"token_bucket":       {Algorithm: engine.TokenBucket, Hits: 10, Window: minute, Burst: 10, Initial: 10},
		"token_bucket debt":  {Algorithm: engine.TokenBucket, Hits: 10, Window: minute, Burst: 10, Initial: 10, Debt: 7},
		"leaky_bucket":       {Algorithm: engine.LeakyBucket, Hits: 10, Window: minute, Burst: 10},
		"concurrency":        {Algorithm: engine.Concurrency, Hits: 10, Window: minute},
	}
}

// TestStoresNothingForNothing checks that an op that consumes nothing creates no key, neither alone nor in a list.
func TestStoresNothingForNothing(t *testing.T) {
	p := newPlain(t, redistest.Start(t), nil)
	for name, l := range eachLimit() {
		listed := l
		listed.Listed, listed.CountRefused = true, false
		another := engine.Limit{Algorithm: engine.FixedWindow, Hits: 5, Window: second, Listed: true}
		for _, limits := range []engine.Limits{{l}, {listed, another}} {
			for _, op := range []backend.Op{
				{Mode: backend.Peek, Take: engine.Take{Cost: 1, Count: 1, Owner: "a"}},
				{Mode: backend.Peek, Take: engine.Take{Cost: 99, Count: 1}},
				{Mode: backend.Take, Take: engine.Take{Cost: 0, Count: 1}},
				{Mode: backend.Refund, Take: engine.Take{Cost: 3, Count: 1, Owner: "a"}},
				{Mode: backend.Refund, Take: engine.Take{Cost: 3, Count: 1}},
				{Mode: backend.Reset},
			} {
				op.Limits = limits
				p.one(t, op)
				if keys := p.stored(t); len(keys) > 0 {
					t.Fatalf("%s: %+v left %q", name, op, keys)
				}
			}
		}
	}
}

// TestInitialIsStored checks that the first take from a bucket that starts below its burst stores it, even with cost 0.
func TestInitialIsStored(t *testing.T) {
	p := newPlain(t, redistest.Start(t), nil)
	l := engine.Limit{Algorithm: engine.TokenBucket, Hits: 1, Window: minute, Burst: 5, Initial: 2}
	p.one(t, backend.Op{Limits: engine.Limits{l}, Mode: backend.Peek, Take: engine.Take{Cost: 1, Count: 1}})
	if keys := p.stored(t); len(keys) > 0 {
		t.Fatalf("a look left %q, want no key", keys)
	}
	p.one(t, backend.Op{Limits: engine.Limits{l}, Take: engine.Take{Cost: 0, Count: 1}})
	keys := p.stored(t)
	if len(keys) != 1 {
		t.Fatalf("a take for nothing left %q, want one key", keys)
	}
	if ttl := p.client.PTTL(t.Context(), keys[0]).Val(); ttl < 3*time.Minute || ttl > 20*time.Minute {
		t.Errorf("it is kept for %v, want at least the 4 minutes until the bucket has been full for a minute", ttl)
	}
}

// TestSlotsAreOneRecord checks that the cost of a take of slots does not depend on their number.
func TestSlotsAreOneRecord(t *testing.T) {
	p := newPlain(t, redistest.Start(t), nil)
	limits := engine.Limits{{Algorithm: engine.Concurrency, Hits: 10_000, Window: minute}}
	for _, owner := range []string{"", "ann"} {
		op := backend.Op{Key: keyOf(len(owner)), Limits: limits, Take: engine.Take{Cost: 9_999, Count: 1, Owner: owner}}
		p.one(t, op)
		op.Take.Cost = 10_000
		if d := p.one(t, op); (d.Admitted == 1) != (owner != "") {
			t.Errorf("one more for %q: %+v", owner, d)
		}
		key := string(p.base(nil, &op)) + limits[0].Slot().String()
		if n := p.client.HLen(t.Context(), key).Val(); n == 0 || n > 3 {
			t.Errorf("10,000 slots of %q are %d fields", owner, n)
		}
		op.Mode = backend.Refund
		p.one(t, op)
		if keys := p.stored(t); len(keys) > 0 {
			t.Errorf("all slots of %q are released, which left %q", owner, keys)
		}
	}
}

// TestExpiry checks that a state is kept as long as it matters and little longer, apart from the jitter.
func TestExpiry(t *testing.T) {
	s := redistest.Start(t)
	for name, l := range eachLimit() {
		for _, jitter := range []time.Duration{0, time.Hour} {
			p := newPlain(t, s, nil)
			p.jitter = jitter.Milliseconds()
			var least, most time.Duration = math.MaxInt64, 0
			for i := range 40 {
				op := backend.Op{Key: keyOf(i), Limits: engine.Limits{l}, Take: engine.Take{Cost: 3, Count: 1}}
				begun := time.Now()
				d := p.one(t, op)
				key := p.base(nil, &op)
				ttl := p.client.PTTL(t.Context(), string(key)+l.Slot().String()).Val()
				if longest := 2*d.ResetAfter + 10*time.Second + jitter; ttl < d.ResetAfter-time.Second-time.Since(begun) || ttl > longest {
					t.Errorf("%s: the state is kept for %v, want from %v to %v", name, ttl, d.ResetAfter, longest)
				}
				least, most = min(least, ttl), max(most, ttl)
			}
			if jitter > 0 && most-least < jitter/4 {
				t.Errorf("%s: with a jitter of %v states are kept for %v to %v, which is nearly the same", name, jitter, least, most)
			}
			if err := p.client.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestShortWay runs takes for the fast path of a script, mixed with others that it cannot decide: hits that do not fit the short form of
// a window's state, and windows and buckets from the future, with another rate, or expired.
func TestShortWay(t *testing.T) {
	now := engine.Micros(1_800_000_000_000_000)
	p := newPlain(t, redistest.Start(t), func() engine.Micros { return now })
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...uint64) uint64 { return of[random.IntN(len(of))] }
	for i := range 400 {
		window := engine.Micros(pick(1000, 1000, 1_000_000, uint64(year)))
		a := engine.Algorithm(pick(uint64(engine.FixedWindow), uint64(engine.TokenBucket), uint64(engine.LeakyBucket)))
		var state engine.State
		var l engine.Limit
		for range 40 {
			if l.Hits == 0 || random.IntN(5) == 0 {
				l = engine.Limit{Algorithm: a, Window: window, CountRefused: random.IntN(2) == 0}
				l.Hits = pick(10, 300, 999, 7, 999_999, 1<<32-1)
				if a != engine.FixedWindow {
					l.Burst = pick(10, 300, 999, 1<<32-1)
					l.CountRefused = l.CountRefused && a == engine.TokenBucket
				}
				if a == engine.TokenBucket {
					l.Initial = l.Burst
				}
				if l.Validate() != nil { // filling would take more than 100 years
					l = engine.Limit{}
					continue
				}
			}
			limits := engine.Limits{l.Prepared()}
			take := engine.Take{Count: pick(1, 1, 1, 2, 3)}
			take.Cost = pick(1, 1, 1, 5, 300, 998, 999, 1000, 4097, 500_000, 1_000_000, 1<<31-1, 1<<31, 1<<40)
			if a == engine.LeakyBucket {
				take.Count = 1
			}
			want := limits.Take([]*engine.State{&state}, now, take)
			op := backend.Op{Key: keyOf(i), Limits: limits, Take: take}
			if diff := cmp.Diff(want, p.one(t, op)); diff != "" {
				t.Fatalf("%+v at %d: (-engine's +got):\n%s", op, now, diff)
			}
			now += engine.Micros(pick(0, 0, 1, 100, uint64(window)-1, uint64(window)))
			if random.IntN(20) == 0 && now < state.Expires() { // otherwise a store may have dropped it
				now -= engine.Micros(pick(1, 100, uint64(window)))
			}
		}
	}
}

// TestLargeStates tests states with the maximum number of stamps and slots.
func TestLargeStates(t *testing.T) {
	const most = 10_000
	take := func(cost uint64, owner string) backend.Op {
		return backend.Op{Take: engine.Take{Cost: cost, Count: 1, Owner: owner}}
	}
	give := func(cost uint64, owner string) backend.Op {
		op := take(cost, owner)
		op.Mode = backend.Refund
		return op
	}
	type step struct {
		after engine.Micros // after the last one
		op    backend.Op
	}
	slots := []step{
		{0, take(most-1, "")},
		{1, take(2, "")},
		{1, give(4321, "")},
		{1, take(4000, "a")},
		{1, take(5000, "a")},
		{1, take(1, "")},
		{1, give(2500, "a")},
		{1, take(2000, "b")},
		{-3 * second, take(3, "")},
		{1, take(600, "")},
		{minute, take(500, "b")},
		{1, take(most, "")},
		{1, give(most, "")},
		{1, take(9000, "")},
		{1, give(9000, "")},
		{2 * minute, take(most, "")},
	}
	log := []step{{1, take(1, "")}, {0, give(4321, "")}, {1, take(4000, "")}, {1, take(8000, "")}}
	for range most {
		log = append(log, step{minute / most / 2, take(1, "")})
	}
	log = append(log, step{1, take(4000, "")}, step{0, give(1234, "")}, step{minute - 20, take(1, "")}, step{-second, take(1, "")},
		step{minute / 2, take(5000, "")}, step{2 * minute, take(most, "")})
	for _, of := range []struct {
		limit engine.Limit
		steps []step
	}{
		{engine.Limit{Algorithm: engine.SlidingLog, Hits: most, Window: minute}, log},
		{engine.Limit{Algorithm: engine.SlidingLog, Hits: most, Window: minute, CountRefused: true}, log},
		{engine.Limit{Algorithm: engine.Concurrency, Hits: most, Window: minute}, slots},
	} {
		now := engine.Micros(1_800_000_000_000_000)
		p := newPlain(t, redistest.Start(t), func() engine.Micros { return now })
		limits, state := engine.Limits{of.limit}, new(engine.State)
		for i, step := range of.steps {
			now += step.after
			op := step.op
			op.Limits = limits
			want := limits.Take
			if op.Mode == backend.Refund {
				want = limits.Refund
			}
			if diff := cmp.Diff(want([]*engine.State{state}, now, op.Take), p.one(t, op)); diff != "" {
				t.Fatalf("%s, step %d, %+v: (-engine's +got):\n%s", of.limit.Algorithm, i, op.Take, diff)
			}
		}
	}
}

//go:embed testdata/divisions.lua
var divisions string

// TestMuldiv compares the arithmetic of the scripts with that of math/big.
func TestMuldiv(t *testing.T) {
	muldiv, err := newScript("muldiv")
	if err != nil {
		t.Fatal(err)
	}
	c := redistest.Start(t).Client()
	limit := new(big.Int).Lsh(big.NewInt(1), 53)
	for round := range 50 {
		var keys []string
		var want []string
		for range 300 {
			a, b, c := edge(53), edge(48), max(1, edge(48))
			quo, rem := new(big.Int), new(big.Int)
			quo.DivMod(new(big.Int).Mul(new(big.Int).SetUint64(a), new(big.Int).SetUint64(b)), new(big.Int).SetUint64(c), rem)
			keys = append(keys, fmt.Sprint(a), fmt.Sprint(b), fmt.Sprint(c))
			want = append(want, fmt.Sprint(quo, " ", rem))
			if quo.Cmp(limit) >= 0 {
				want[len(want)-1] = fmt.Sprint("huge ", rem)
			}
		}
		got, err := c.Eval(t.Context(), muldiv.text+divisions, keys).StringSlice()
		if err != nil {
			t.Fatal(err)
		}
		for i := range got {
			quo, rem, _ := strings.Cut(got[i], " ")
			if q, ok := new(big.Int).SetString(quo, 10); ok && q.Cmp(limit) >= 0 {
				quo = "huge"
			}
			if quo+" "+rem != want[i] {
				t.Fatalf("round %d: muldiv(%s) is %s, want %s", round, strings.Join(keys[3*i:3*i+3], ", "), got[i], want[i])
			}
		}
	}
}

// edge draws a number of at most the given bits, often next to a power of two.
func edge(bits int) uint64 {
	n := rand.Uint64N(1 << rand.IntN(bits+1))
	switch rand.IntN(4) {
	case 0:
		n = 1<<rand.IntN(bits+1) - 1
	case 1:
		n = 1 << rand.IntN(bits)
	}
	return n
}
