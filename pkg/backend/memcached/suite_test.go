package memcached

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/memcachedtest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/backendtest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run returns a running backend of c. If want is true, it waits until the backend decides. The backend ends with the test.
func run(tb testing.TB, c Config, want bool) *Backend {
	tb.Helper()
	b, err := New(c)
	if err != nil {
		tb.Fatal(err)
	}
	testkit.Run(tb, b.Run)
	tb.Cleanup(func() { // also ends Run
		if err := b.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	if want {
		testkit.Eventually(tb, "a decision", func() bool { return one(b, "ready").Err == nil })
	}
	return b
}

// perHour returns a fixed window of an hour.
func perHour(hits uint64) engine.Limits {
	return engine.Limits{{Algorithm: engine.FixedWindow, Hits: hits, Window: 3600e6, CountRefused: true}}
}

// opOn returns a take of one hit from the counter called name, with a limit of a million per hour.
func opOn(name string) backend.Op {
	op := backend.Op{Name: []byte(name + "_"), Limits: perHour(1e6), Take: engine.Take{Cost: 1, Count: 1}}
	copy(op.Key[:], name)
	return op
}

// one takes one hit from the counter called name.
func one(b *Backend, name string) backend.Op { return apply(b, opOn(name)) }

func apply(b *Backend, op backend.Op) backend.Op {
	ops := []backend.Op{op}
	b.Apply(context.Background(), ops)
	return ops[0]
}

// class returns the class of op's error, or "".
func class(op backend.Op) remote.Class {
	if e, ok := errors.AsType[*remote.Error](op.Err); ok {
		return e.Class
	}
	return ""
}

// TestBackend runs the fixed-window part of the suite over two servers.
func TestBackend(t *testing.T) {
	t.Parallel()
	first, second := memcachedtest.Start(t), memcachedtest.Start(t)
	backendtest.Run(t, backendtest.Harness{
		FixedWindows: true,
		Open: func(tb testing.TB, now func() engine.Micros) backend.Backend {
			tb.Helper()
			first.Send("flush_all")
			second.Send("flush_all")
			return run(tb, Config{
				Servers: []string{first.Addr(), second.Addr()}, OpTimeout: slow, DialTimeout: slow, Now: now,
				ExpirationJitter: 24 * time.Hour, // so that no counter expires on memcached's clock, which keeps running, before it does on the suite's
			}, true)
		},
	})
}
