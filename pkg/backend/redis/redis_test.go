package redis

import (
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/backendtest"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis would log each fault caused by tests
	goleak.VerifyTestMain(m)
}

// TestBackend runs the suite with short random sequences and without many reservations; TestScripts has them.
func TestBackend(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	backendtest.Run(t, backendtest.Harness{Calls: 20, Takes: 4000, Brief: true, Open: func(tb testing.TB, now func() engine.Micros) backend.Backend {
		tb.Helper()
		s.CLI("FLUSHALL")
		return run(tb, Config{URL: s.Addr(), Now: now, OpTimeout: slow}, true)
	}})
}
