package nearcache_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/backendtest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/backend/nearcache"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// The suite over memory, with rejections remembered for a second, as long as they are valid, and for almost no time.
func TestBackendSecond(t *testing.T) { overMemory(t, nearcache.Config{}) }
func TestBackendUntil(t *testing.T)  { overMemory(t, nearcache.Config{Rejection: 1<<63 - 1}) }
func TestBackendFew(t *testing.T)    { overMemory(t, nearcache.Config{Keys: 2}) }

func overMemory(t *testing.T, c nearcache.Config) {
	t.Helper()
	var caches []*nearcache.Backend
	backendtest.Run(t, backendtest.Harness{Calls: nearcache.SuiteCalls, Takes: 4000, Open: func(_ testing.TB, now func() engine.Micros) backend.Backend {
		c.Now = now
		b := nearcache.New(memory.New(memory.Config{Now: now}), c)
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
