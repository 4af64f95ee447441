package redis

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// reference runs a backend with the reference's keys, whose clock stands still at now.
func reference(t *testing.T, s *redistest.Server, now *atomic.Int64) *Backend {
	t.Helper()
	c := Config{URL: s.Addr(), KeyFormat: ReferenceKeys, KeyPrefix: "pre_", ExpirationJitter: 300 * time.Second, OpTimeout: slow}
	if now != nil {
		c.Now = func() engine.Micros { return engine.Micros(now.Load()) }
	}
	b := run(t, c, true)
	s.CLI("FLUSHALL")
	return b
}

// TestReferenceGoesOn checks that this package continues a counter begun with the reference's commands, and vice versa.
func TestReferenceGoesOn(t *testing.T) {
	t.Parallel()
	var now atomic.Int64
	now.Store(1234_000_000)
	s := redistest.Start(t)
	b := reference(t, s, &now)
	const key = "pre_mongo_cps_database_users_1200" // of the minute that contains second 1234
	s.CLI("INCRBY", key, "3")
	s.CLI("EXPIRE", key, "60")
	op := []backend.Op{{
		Key: keyOf(1), Name: []byte("mongo_cps_database_users_"), Take: engine.Take{Cost: 2, Count: 1},
		Limits: engine.Limits{{Algorithm: engine.FixedWindow, Hits: 10, Window: 60e6, CountRefused: true}},
	}}
	begun := time.Now()
	b.Apply(t.Context(), op)
	want := engine.Decision{Admitted: 1, Left: 7, Window: 1200e6, ResetAfter: 26 * time.Second}
	if diff := cmp.Diff(want, op[0].Decision); diff != "" || op[0].Err != nil {
		t.Fatalf("%v (-want +got):\n%s", op[0].Err, diff)
	}
	if got := s.CLI("INCRBY", key, "1"); got != "6" {
		t.Errorf("the reference goes on with %s, want 6", got)
	}
	if ttl := s.Client().TTL(t.Context(), key).Val(); ttl < 59*time.Second-time.Since(begun) || ttl > 360*time.Second {
		t.Errorf("the key lives for %v, want 60 s and up to 300 s more", ttl)
	}
	if got := s.CLI("KEYS", "*"); got != key {
		t.Errorf("keys %q, want this one only", got)
	}
	s.CLI("SET", key, "x")
	b.Apply(t.Context(), op)
	if op[0].Err == nil || !strings.Contains(op[0].Err.Error(), "not an integer") {
		t.Errorf("a key that is no counter: %v", op[0].Err)
	}
}

// TestReferenceCalendar checks that calendar months have the keys of USE_CALENDAR_MONTH_RATE_LIMIT=true, which contain the start of the
// month in UTC, and live until the month ends.
func TestReferenceCalendar(t *testing.T) {
	t.Parallel()
	var now atomic.Int64
	s := redistest.Start(t)
	b := reference(t, s, &now)
	for _, c := range []struct {
		at, zone, key string
		reset         time.Duration
	}{
		{"2028-02-29T23:59:00Z", "UTC", "pre_k_1832976000", time.Minute},                                           // 2028-02-01T00:00:00Z
		{"2028-03-01T00:00:00.5Z", "UTC", "pre_k_1835481600", 31*24*time.Hour - time.Second/2},                     // 2028-03-01
		{"2028-02-29T23:59:00Z", "Europe/Berlin", "pre_k_1835478000", 31*24*time.Hour - 2*time.Hour + time.Minute}, // 2028-03-01T00:00:00+01:00
	} {
		at, err := time.Parse(time.RFC3339Nano, c.at)
		if err != nil {
			t.Fatal(err)
		}
		now.Store(at.UnixMicro())
		ops := []backend.Op{{Key: keyOf(1), Name: []byte("k_"), Take: engine.Take{Cost: 1, Count: 1}, Limits: engine.Limits{monthly(10, c.zone)}}}
		begun := time.Now()
		b.Apply(t.Context(), ops)
		if d := ops[0].Decision; ops[0].Err != nil || d.Left != 10 || d.ResetAfter != c.reset {
			t.Errorf("%s in %s: %+v, %v, want 10 left and %v until it resets", c.at, c.zone, d, ops[0].Err, c.reset)
		}
		if ttl := s.Client().TTL(t.Context(), c.key).Val(); ttl < c.reset-2*time.Second-time.Since(begun) || ttl > c.reset+300*time.Second {
			t.Errorf("%s in %s: %s is kept for %v, want %v and up to 300 s more; there are %q", c.at, c.zone, c.key, ttl, c.reset, s.CLI("KEYS", "*"))
		}
	}
}

// TestReferenceEqualsEngine checks that decisions are those of pkg/engine for windows that count rejected hits, as all windows do in this
// format.
func TestReferenceEqualsEngine(t *testing.T) {
	t.Parallel()
	var now atomic.Int64
	now.Store(1e15)
	s := redistest.Start(t)
	b := reference(t, s, &now)
	for range 30 {
		limit := engine.Limit{Algorithm: engine.FixedWindow, Hits: rand.Uint64N(12), Window: engine.Micros(1+rand.IntN(90)) * 1e6, CountRefused: true}
		if rand.IntN(4) == 0 {
			limit.Calendar = monthly(1, "Europe/Berlin").Calendar
		}
		key := rand.Int()
		state := new(engine.State)
		for range 60 {
			at := engine.Micros(now.Add(rand.Int64N(4e6)))
			op := backend.Op{
				Key: keyOf(key), Name: nameOf(key), Limits: engine.Limits{limit}, Mode: backend.Mode(rand.IntN(4)),
				Take: engine.Take{Cost: rand.Uint64N(5), Count: 1 + rand.Uint64N(3)},
			}
			if rand.IntN(20) == 0 {
				op.Take.Cost = 1 << 40
			}
			if op.Mode == backend.Refund {
				op.Take.Window = int64(at - at%1e6 - engine.Micros(rand.IntN(2))*limit.Window)
			}
			ops, states := []backend.Op{op}, []*engine.State{state}
			b.Apply(t.Context(), ops)
			var want engine.Decision
			switch op.Mode {
			case backend.Take:
				want = op.Limits.Take(states, at, op.Take)
			case backend.Peek:
				want = op.Limits.Peek(states, at, op.Take)
			case backend.Refund:
				want = op.Limits.Refund(states, at, op.Take)
			case backend.Reset, backend.ForceReset:
				want = op.Limits.Reset(states, at)
			case backend.Settle:
				t.Fatal("there are no reservations")
			}
			ignore := cmpopts.IgnoreFields(engine.Decision{}, "Window", "ResetAfter", "RetryAfter")
			if op.Mode == backend.Take || op.Mode == backend.Peek {
				ignore = cmpopts.EquateEmpty() // ignores nothing
			}
			if diff := cmp.Diff(want, ops[0].Decision, ignore); diff != "" || ops[0].Err != nil {
				t.Fatalf("mode %d, %+v of %+v: %v (-engine's +got):\n%s", op.Mode, op.Take, limit, ops[0].Err, diff)
			}
		}
	}
}

// TestReferenceOverflow checks that a counter at its maximum rejects without an error, even after all but one of the takes are refunded.
func TestReferenceOverflow(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := reference(t, s, nil)
	ops := []backend.Op{{Key: keyOf(1), Name: nameOf(1), Limits: lasting(5), Take: engine.Take{Cost: math.MaxUint64, Count: 1}}}
	for i := range 1100 {
		b.Apply(t.Context(), ops)
		if d := ops[0].Decision; ops[0].Err != nil || d.Admitted != 0 || d.RetryAfter == 0 || (i > 0) != (d.Left == 0) {
			t.Fatalf("take %d of 2^64-1: %+v, %v", i, d, ops[0].Err)
		}
	}
	ops[0].Mode = backend.Refund
	for range 1099 {
		b.Apply(t.Context(), ops)
	}
	ops[0].Mode, ops[0].Take.Cost = backend.Peek, 1
	if b.Apply(t.Context(), ops); ops[0].Err != nil || ops[0].Decision.Admitted != 0 {
		t.Errorf("once all but one have refunded: %+v, %v", ops[0].Decision, ops[0].Err)
	}
}

func TestReferenceInvalid(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := reference(t, s, nil)
	ops := []backend.Op{
		{Name: nameOf(1), Limits: lasting(5)},
		{Limits: lasting(5)},
		{Name: nameOf(1), Limits: lasting(5), Penalty: &engine.Penalty{For: 1, Max: 1}},
	}
	for _, limits := range everyAlgorithm() {
		ops = append(ops, backend.Op{Name: nameOf(2), Limits: limits})
	}
	for i := range ops {
		ops[i].Key, ops[i].Take = keyOf(i), engine.Take{Cost: 1, Count: 1}
	}
	b.Apply(t.Context(), ops)
	if ops[0].Err != nil || ops[0].Decision.Admitted != 1 {
		t.Errorf("a fixed window among what cannot be done: %+v, %v", ops[0].Decision, ops[0].Err)
	}
	if !errors.Is(ops[1].Err, errNoName) {
		t.Errorf("without a name: %v", ops[1].Err)
	}
	for i := range ops[2:] {
		if !errors.Is(ops[2+i].Err, errFixedOnly) {
			t.Errorf("op %d: %v, want that it takes our keys", 2+i, ops[2+i].Err)
		}
	}
	if got := s.CLI("DBSIZE"); got != "1" {
		t.Errorf("%s keys, want 1", got)
	}
}

// TestReferenceAgain checks that only the EXPIRE is resent if its INCRBY was answered and it was not.
func TestReferenceAgain(t *testing.T) {
	t.Parallel()
	r := newReferenceCodec(&Config{})
	it := &item{op: backend.Op{Name: nameOf(1), Limits: lasting(5), Take: engine.Take{Cost: 1, Count: 1}}}
	var cs calls
	r.encode(&cs, []*item{it}, false)
	c := cs.all[0]
	if got := c.unanswered(nil); len(got) != 2 {
		t.Fatalf("%d commands, want two", len(got))
	}
	c.sent[0].(*command).SetVal(int64(1))
	c.sent[1].(*command).SetErr(reply("MOVED 1 127.0.0.1:1"))
	c.replied("node")
	if c.err == nil || c.err.Code != "MOVED" {
		t.Fatalf("err is %v, want MOVED", c.err)
	}
	r.again(c)
	if got := c.unanswered(nil); len(got) != 1 || got[0].Name() != "expire" {
		t.Fatalf("sent once more: %v, want the EXPIRE", got)
	}
}

// TestReferenceGivenBackLate checks that a counter that expires during a refund, after it was read, is not left without an expiry.
func TestReferenceGivenBackLate(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	codec := newReferenceCodec(&Config{Now: func() engine.Micros { return 1234e6 }})
	op := backend.Op{Name: []byte("k_"), Mode: backend.Refund, Limits: lasting(10), Take: engine.Take{Cost: 2, Count: 1}}
	op.Limits[0].Window = 60e6
	s.CLI("SET", "k_1200", "5", "EX", "60")
	var cs calls
	codec.encode(&cs, []*item{{op: op}}, false)
	send := func() {
		pipe := s.Client().Pipeline()
		_ = pipe.BatchProcess(t.Context(), cs.all[0].sent...) // only buffers
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	send()
	s.CLI("DEL", "k_1200")
	if !codec.more(cs.all[0]) {
		t.Fatal("of 5 hits none is refunded")
	}
	send()
	if ttl := s.Client().TTL(t.Context(), "k_1200").Val(); ttl <= 0 || ttl > time.Minute {
		t.Errorf("the counter is kept for %v, want at most the length of its window", ttl)
	}
}

// TestReferenceCut cuts connections anywhere, also between an INCRBY and its EXPIRE. No key without an expiry may remain, whether new
// connections are opened in time or only at the very end, or if the connections are those of Twemproxy, which answers in place of its
// server.
func TestReferenceCut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ stops, proxied bool }{{}, {stops: true}, {proxied: true}} {
		stops := c.stops
		s := redistest.Start(t)
		p := testkit.NewProxy(t, s.Addr())
		addr := p.Addr()
		if c.proxied {
			addr = redistest.Twemproxy(t, []string{addr}).Addr()
		}
		b := run(t, Config{URL: addr, KeyFormat: ReferenceKeys}, true)
		p.CutRequests.Store(2000)
		p.Reset()
		var next, failures atomic.Int64
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for p.Accepted.Load() < 200 {
					if oneIn(b, int(next.Add(1)), usual).Err != nil {
						failures.Add(1)
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
		wg.Wait()
		p.CutRequests.Store(0)
		if stops {
			p.Reset()
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
		c := s.Client()
		keys, err := c.Keys(t.Context(), "*").Result()
		if err != nil || len(keys) < 100 {
			t.Fatalf("%d keys, %v", len(keys), err)
		}
		t.Logf("%d keys, %d failed ops", len(keys), failures.Load())
		lasting := func() bool {
			return slices.ContainsFunc(keys, func(key string) bool { return c.TTL(t.Context(), key).Val() == -1 })
		}
		if stops && lasting() {
			t.Error("a key never expires")
		}
		testkit.Eventually(t, "an expiry for each key", func() bool { return !lasting() })
	}
}

// TestReferenceLadder makes takes from many concurrent callers, merged into INCRBYs.
func TestReferenceLadder(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := reference(t, s, nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	rungs := map[uint64]int{}
	for range 32 {
		wg.Go(func() {
			for range 100 {
				ops := []backend.Op{{Key: keyOf(1), Name: nameOf(1), Limits: lasting(1000), Take: engine.Take{Cost: 1, Count: 1}}}
				b.Apply(t.Context(), ops)
				mu.Lock()
				if ops[0].Decision.Admitted == 1 {
					rungs[ops[0].Decision.Left]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(rungs) != 1000 || rungs[1] != 1 || rungs[1000] != 1 {
		t.Errorf("%d rungs of the ladder, want each of 1000 once", len(rungs))
	}
}
