package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/rls"
	"github.com/ratelimitd/ratelimitd/internal/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// playOnMemory plays a trace against a server over counters in memory, on virtual time that begins with a window of every
// length used.
func playOnMemory(t *testing.T, parts map[string]string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Config{})
		l := limiter.New(store, stats.New(), limiter.Config{})
		if err := loadRules(l, parts["rules.yaml"]); err != nil {
			t.Fatal(err)
		}
		client, stop := serveTraces(t, l)
		start := time.Now() // midnight UTC of a day that begins no week, but none is used
		play(t, &traced{
			client: client,
			reset: func(ctx context.Context, domain, descriptor string, force bool) (bool, error) {
				return resetCounter(ctx, l, domain, descriptor, force)
			},
			reload: func(rules string) error { return loadRules(l, rules) },
			sleep:  func(until time.Duration) error { return sleepUntil(start.Add(until)) },
		}, parts)
		stop()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
}

// serveTraces serves what l decides, until stop is called.
func serveTraces(t *testing.T, l *limiter.Limiter) (client rlsv3.RateLimitServiceClient, stop func()) { //nolint:ireturn // what the generated code has
	t.Helper()
	server := rls.NewServer(rls.New(l, rls.Config{
		Headers:          rls.Headers{Enabled: true},
		DecisionMetadata: true,
	}), rls.ServerConfig{})
	listener := bufconn.Listen(1 << 16)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///trace",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	return rlsv3.NewRateLimitServiceClient(conn), func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		server.Shutdown(context.WithoutCancel(t.Context()))
		if err := <-served; err != nil {
			t.Errorf("serving: %v", err)
		}
	}
}

// sleepUntil sleeps until at, which must not have passed.
func sleepUntil(at time.Time) error {
	left := time.Until(at)
	if left < 0 {
		return fmt.Errorf("it is %v later already", -left)
	}
	time.Sleep(left)
	return nil
}

func loadRules(l *limiter.Limiter, rules string) error {
	set, _, err := descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(rules)}}, descriptors.Options{Strict: true})
	if err != nil {
		return fmt.Errorf("loading the rules: %w", err)
	}
	l.SetRules(set)
	return nil
}

func resetCounter(ctx context.Context, l *limiter.Limiter, domain, descriptor string, force bool) (done bool, err error) {
	var entries []descriptors.Entry
	for e := range strings.SplitSeq(descriptor, ",") {
		key, value, _ := strings.Cut(e, "=")
		entries = append(entries, descriptors.Entry{Key: []byte(key), Value: []byte(value)})
	}
	c, err := l.Reset(ctx, domain, entries, force)
	if err != nil {
		return false, err
	}
	return c.Decision.Penalty == 0, nil
}
