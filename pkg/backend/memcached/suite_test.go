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

// run makes a backend of c, runs it, and waits until it decides if want is true. It ends with the test.
func run(tb testing.TB, c Config, want bool) *Backend {
	tb.Helper()
	b, err := New(c)
	if err != nil {
		tb.Fatal(err)
	}
	testkit.Run(tb, b.Run)
	tb.Cleanup(func() { // which ends Run
		if err := b.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	if want {
		testkit.Eventually(tb, "a decision", func() bool { return one(b, "ready").Err == nil })
	}
	return b
}

// perHour is a fixed window of an hour.
func perHour(hits uint64) engine.Limits {
	return engine.Limits{{Algorithm: engine.FixedWindow, Hits: hits, Window: 3600e6, CountRefused: true}}
}

// opOn is a take of one hit of a million an hour from the counter of that name.
func opOn(name string) backend.Op {
	op := backend.Op{Name: []byte(name + "_"), Limits: perHour(1e6), Take: engine.Take{Cost: 1, Count: 1}}
	copy(op.Key[:], name)
	return op
}

// one makes a take of one hit from the counter of that name.
func one(b *Backend, name string) backend.Op { return apply(b, opOn(name)) }

func apply(b *Backend, op backend.Op) backend.Op {
	ops := []backend.Op{op}
	b.Apply(context.Background(), ops)
	return ops[0]
}

// class is the class of op's error; empty where it has none.
func class(op backend.Op) remote.Class {
	if e, ok := errors.AsType[*remote.Error](op.Err); ok {
		return e.Class
	}
	return ""
}

// TestBackend plays the suite, as far as it is about fixed windows, over two servers.
func TestBackend(t *testing.T) {
	t.Parallel()
	first, second := memcachedtest.Start(t), memcachedtest.Start(t)
	backendtest.Run(t, backendtest.Harness{
		FixedWindows: true,
		Open: func(tb testing.TB, now func() engine.Micros) backend.Backend {
			tb.Helper()
			first.Say("flush_all")
			second.Say("flush_all")
			return run(tb, Config{
				Servers: []string{first.Addr(), second.Addr()}, OpTimeout: slow, DialTimeout: slow, Now: now,
				ExpirationJitter: 24 * time.Hour, // so that none ends by memcached's clock, which goes on, before it does by the suite's
			}, true)
		},
	})
}
