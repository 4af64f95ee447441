package nearcache_test

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/backendtest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/backend/nearcache"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// The suite over memory, with rejections remembered for a second, as long as they are valid, and for almost no time.
func TestBackendSecond(t *testing.T) { overMemory(t, nearcache.Config{}) }
func TestBackendUntil(t *testing.T)  { overMemory(t, nearcache.Config{Rejection: 1<<63 - 1}) }
func TestBackendFew(t *testing.T)    { overMemory(t, nearcache.Config{Keys: 2}) }

func overMemory(t *testing.T, c nearcache.Config) {
	t.Helper()
	suite(t, c, func(_ testing.TB, now func() engine.Micros) backend.Backend {
		return memory.New(memory.Config{Now: now})
	})
}

// suite runs the suite over stores that open returns.
func suite(t *testing.T, c nearcache.Config, open func(tb testing.TB, now func() engine.Micros) backend.Backend) {
	t.Helper()
	var caches []*nearcache.Backend
	cached := func(tb testing.TB, now func() engine.Micros) backend.Backend {
		tb.Helper()
		c.Now = now
		b := nearcache.New(open(tb, now), c)
		caches = append(caches, b)
		return b
	}
	backendtest.Run(t, backendtest.Harness{Calls: nearcache.SuiteCalls, Takes: 4000, Brief: true, Open: cached})
	var served uint64
	for _, b := range caches {
		served += b.Stats().Rejections
	}
	t.Logf("%d rejections were remembered ones", served)
	if served == 0 {
		t.Error("no rejection was a remembered one")
	}
}

func TestOff(t *testing.T) {
	for _, c := range []nearcache.Config{{Keys: -1}, {Rejection: -1}} {
		b := nearcache.New(memory.New(memory.Config{}), c)
		for range 3 {
			ops := []backend.Op{{Key: keyOf(1), Limits: engine.Limits{bucket(1, hour)}, Take: engine.Take{Cost: 1, Count: 2}}}
			if b.Apply(t.Context(), ops); ops[0].Origin == backend.FromRejection || ops[0].Decision.RetryAfter == 0 {
				t.Errorf("%+v: got %+v", c, ops[0])
			}
		}
		if s := b.Stats(); s != (nearcache.Stats{}) {
			t.Errorf("%+v: counted %+v", c, s)
		}
	}
}

// The suite over Redis.
func TestBackendOverRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	suite(t, nearcache.Config{}, func(tb testing.TB, now func() engine.Micros) backend.Backend {
		tb.Helper()
		s.CLI("FLUSHALL")
		return openRedis(tb, s, now)
	})
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

// TestMain checks that nothing runs in the background.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
