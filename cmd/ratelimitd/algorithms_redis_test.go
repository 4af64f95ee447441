package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// virtual is the clock that the scripts in Redis are given. It begins with a window of every length used.
type virtual struct {
	start int64 // µs
	now   atomic.Int64
}

func newVirtual() *virtual {
	v := &virtual{start: time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC).UnixMicro()}
	v.now.Store(v.start)
	return v
}

// sleep turns the clock to a time since the start. Several clients may turn it to the same one.
func (v *virtual) sleep(until time.Duration) error {
	now, at := v.now.Load(), v.start+until.Microseconds()
	if at < now {
		return fmt.Errorf("it is %v later already", time.Duration(now-at)*time.Microsecond)
	}
	v.now.Store(at)
	return nil
}

// inTurn asks each of several servers in turn.
type inTurn struct {
	clients []rlsv3.RateLimitServiceClient
	next    atomic.Uint64
}

func (c *inTurn) ShouldRateLimit(
	ctx context.Context, r *rlsv3.RateLimitRequest, o ...grpc.CallOption,
) (*rlsv3.RateLimitResponse, error) {
	return c.clients[c.next.Add(1)%uint64(len(c.clients))].ShouldRateLimit(ctx, r, o...)
}

// playOnRedis plays a trace against so many servers over counters in one Redis, each request to another of them, on a
// clock that the trace turns.
func playOnRedis(t *testing.T, parts map[string]string, db *redistest.Server, servers int) {
	t.Helper()
	clock, asked := newVirtual(), new(inTurn)
	var limiters []*limiter.Limiter
	for range servers {
		l, client := serveOnRedis(t, redis.Config{
			URL:         db.Addr(),
			KeyPrefix:   t.Name(),
			OpTimeout:   patience,
			DialTimeout: patience,
			Now:         func() engine.Micros { return engine.Micros(clock.now.Load()) },
		})
		limiters, asked.clients = append(limiters, l), append(asked.clients, client)
	}
	reload := func(rules string) error {
		for _, l := range limiters {
			if err := loadRules(l, rules, ""); err != nil {
				return err
			}
		}
		return nil
	}
	testkit.Check(t, reload(parts["rules.yaml"]))
	play(t, &traced{
		client: asked,
		reset: func(ctx context.Context, domain, descriptor string, force bool) (bool, error) {
			return resetCounter(ctx, limiters[0], domain, descriptor, force)
		},
		reload: reload,
		sleep:  clock.sleep,
	}, parts)
}

// serveOnRedis serves over counters in a Redis, without rules, until the test ends.
func serveOnRedis(t *testing.T, c redis.Config) (*limiter.Limiter, rlsv3.RateLimitServiceClient) { //nolint:ireturn // what the generated code has
	t.Helper()
	store, err := redis.New(c)
	testkit.Check(t, err)
	testkit.Run(t, store.Run)
	l := limiter.New(store, stats.New(), limiter.Config{ReferenceNames: c.KeyFormat == redis.ReferenceKeys})
	client, stop := serveTraces(t, l, answers(t, ""))
	t.Cleanup(func() {
		stop()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return l, client
}
