package nearcache_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/backendtest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/nearcache"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// The suite over Redis.
func TestBackendOverRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var caches []*nearcache.Backend
	backendtest.Run(t, backendtest.Harness{Calls: nearcache.SuiteCalls, Takes: 4000, Open: func(tb testing.TB, now func() engine.Micros) backend.Backend {
		tb.Helper()
		s.CLI("FLUSHALL")
		b := nearcache.New(openRedis(tb, s, now), nearcache.Config{Now: now})
		caches = append(caches, b)
		return b
	}})
	var served uint64
	for _, b := range caches {
		served += b.Stats().Rejections
	}
	t.Logf("%d rejections were remembered ones", served)
	if served == 0 {
		t.Error("no rejection was a remembered one")
	}
}

// patient is a Redis without the bounds of the near cache's own calls, which count on an answer within a second; a busy
// machine may take longer, and what comes later is lost. Callers who leave still do.
type patient struct{ *redis.Backend }

func (p patient) Apply(ctx context.Context, ops []backend.Op) {
	if _, bounded := ctx.Deadline(); bounded {
		ctx = context.WithoutCancel(ctx)
	}
	p.Backend.Apply(ctx, ops)
}

// TestNothingLostOverRedis: three replicas, one with room for two keys and one that is replaced, spend hits of three
// counters, with costs up to one that can never pass, rules that change, and callers who leave. At the end Redis has
// counted what was admitted, exactly.
func TestNothingLostOverRedis(t *testing.T) {
	t.Parallel()
	const keys, limit = 3, 100_000
	s := redistest.Start(t)
	var replicas, over []*nearcache.Backend
	var stops []func()
	start := func(c nearcache.Config) {
		b, ctx := nearcache.New(patient{openRedis(t, s, nil)}, c), t.Context()
		ctx, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { _ = b.Run(ctx) })
		replicas, stops = append(replicas, b), append(stops, func() { stop(); wg.Wait() })
	}
	for _, c := range []nearcache.Config{{}, {Keys: 2}, {}} {
		start(c)
	}
	var admitted [keys]atomic.Uint64
	rule := plain(limit, 365*24*hour)
	ask := func(b *nearcache.Backend, draws *rand.Rand) {
		costs := []uint64{1, 1, 1, 1, 1, 1, 1, 1, 3, 7, 26, limit, limit + 1}
		key, l, lease := draws.IntN(keys), rule, backend.Lease(50)
		switch draws.IntN(100) {
		case 0:
			l.Hits--
		case 1:
			lease = backend.LeaseOff
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ops := []backend.Op{{Key: keyOf(uint64(key)), Limits: engine.Limits{l}, Lease: lease, Take: engine.Take{Cost: costs[draws.IntN(len(costs))], Count: 1}}}
		if draws.IntN(50) == 0 {
			cancel()
		}
		if b.Apply(ctx, ops); ops[0].Err == nil {
			admitted[key].Add(ops[0].Decision.Admitted * ops[0].Take.Cost)
		}
	}
	for round := range 2 {
		var wg sync.WaitGroup
		for i, b := range replicas {
			for client := range 4 {
				draws := rand.New(rand.NewPCG(uint64(i), uint64(client)))
				wg.Go(func() {
					for range 1500 {
						ask(b, draws)
					}
				})
			}
		}
		wg.Wait()
		if round == 0 {
			stops[0]()
			over = append(over, replicas[0])
			replicas, stops = replicas[1:], stops[1:]
			start(nearcache.Config{})
		}
	}
	for i, stop := range stops {
		if i > 0 { // the first lets its keys be idle
			stop()
		}
	}
	testkit.Eventually(t, "what is idle goes back", func() bool { return replicas[0].Stats().Held == 0 })
	for _, b := range append(over, replicas...) {
		t.Logf("%+v", b.Stats())
		if st := b.Stats(); st.Held != 0 || st.Unspent != 0 || st.Spent == 0 {
			t.Errorf("%d hits are leased at the end: %+v", b.Held(), st)
		}
	}
	stops[0]()
	for key := range admitted {
		if n := count(t.Context(), replicas[0], keyOf(uint64(key)), rule); n != admitted[key].Load() {
			t.Errorf("key %d: Redis has counted %d, and %d were admitted", key, n, admitted[key].Load())
		}
	}
}

// openRedis connects to s, until the test ends. Now is the time that counters are decided by, that of Redis if nil.
func openRedis(tb testing.TB, s *redistest.Server, now func() engine.Micros) *redis.Backend {
	tb.Helper()
	b, err := redis.New(redis.Config{URL: s.Addr(), Now: now, OpTimeout: 20 * time.Second})
	if err != nil {
		tb.Fatal(err)
	}
	testkit.Run(tb, b.Run)
	tb.Cleanup(func() { // which ends Run
		if err := b.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	ops := []backend.Op{{Limits: engine.Limits{bucket(1, hour)}, Mode: backend.Peek, Take: engine.Take{Count: 1}}}
	testkit.Eventually(tb, "Redis decides", func() bool {
		b.Apply(tb.Context(), ops)
		return ops[0].Err == nil
	}, func() string { return fmt.Sprint(ops[0].Err) })
	return b
}
