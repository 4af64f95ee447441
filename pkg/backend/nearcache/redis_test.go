package nearcache_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/backendtest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/nearcache"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis/redistest"
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
		served += b.Stats().Refusals
	}
	t.Logf("%d refusals were remembered ones", served)
	if served == 0 {
		t.Error("no refusal was a remembered one")
	}
}

// openRedis connects to s, until the test ends. Now is the time that counters are decided by, that of Redis if nil.
func openRedis(tb testing.TB, s *redistest.Server, now func() engine.Micros) *redis.Backend {
	tb.Helper()
	b, err := redis.New(redis.Config{URL: s.Addr(), Now: now, OpTimeout: 20 * time.Second})
	if err != nil {
		tb.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := b.Run(context.WithoutCancel(tb.Context())); err != nil {
			tb.Errorf("Run: %v", err)
		}
	})
	tb.Cleanup(func() {
		if err := b.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
		wg.Wait()
	})
	ops := []backend.Op{{Limits: engine.Limits{bucket(1, hour)}, Mode: backend.Look, Take: engine.Take{Count: 1}}}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if b.Apply(tb.Context(), ops); ops[0].Err == nil {
			return b
		}
		if time.Now().After(deadline) {
			tb.Fatal(ops[0].Err)
		}
	}
}
