package nearcache_test

import (
	"fmt"
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

// The suite over Redis, with random sequences that are shorter than those over memory.
func TestBackendOverRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var caches []*nearcache.Backend
	backendtest.Run(t, backendtest.Harness{Calls: 4, Takes: 4000, Brief: true, Open: func(tb testing.TB, now func() engine.Micros) backend.Backend {
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
