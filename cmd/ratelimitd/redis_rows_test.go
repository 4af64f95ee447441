package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// Rows of docs/faults.md that take a whole server. The others are tests of pkg/backend/redis.

// TestF15_BigValues: a value of 60 KB costs no more than a short one, apart from its transport.
func TestF15_BigValues(t *testing.T) {
	db := redistest.Start(t)
	d := startDaemon(t, db, localRules, "REDIS_OP_TIMEOUT=10s")
	d.ready()
	client := d.client()
	medians := func(values ...string) []time.Duration { // in turn, so that what else the machine does falls on all
		t.Helper()
		took := make([][]time.Duration, len(values))
		for i := range 300 {
			for v, value := range values {
				r := request("user", strconv.Itoa(i)+value)
				begin := time.Now()
				if _, err := client.ShouldRateLimit(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				took[v] = append(took[v], time.Since(begin))
			}
		}
		var middle []time.Duration
		for _, all := range took {
			slices.Sort(all)
			middle = append(middle, all[len(all)/2])
		}
		return middle
	}
	medians("to warm up")
	both := medians("short", strings.Repeat("x", 60_000))
	short, long := both[0], both[1]
	t.Logf("half of the calls took at most %v with a short value, and %v with one of 60 KB", short, long)
	if long > 10*short+10*time.Millisecond {
		t.Errorf("a call with a value of 60 KB took %v, and %v with a short one", long, short)
	}
}

// TestF17_Lockstep: 5,000 clients that call at the edge of a second are answered about as fast as in its middle.
func TestF17_Lockstep(t *testing.T) {
	const clients = 5000
	db := redistest.Start(t)
	d := startDaemon(t, db, "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: second, requests_per_unit: 1000}\n",
		"REDIS_OP_TIMEOUT=10s")
	d.ready()
	var conns []rlsv3.RateLimitServiceClient
	for range 5 {
		conns = append(conns, d.client())
	}
	crowd := func(into time.Duration) (p99 time.Duration, failed int64) {
		t.Helper()
		at := time.Now().Truncate(time.Second).Add(time.Second + into)
		took := make([]time.Duration, clients)
		var failures atomic.Int64
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				r := request("user", strconv.Itoa(i%1000))
				time.Sleep(time.Until(at))
				begin := time.Now()
				if _, err := conns[i%len(conns)].ShouldRateLimit(t.Context(), r); err != nil && failures.Add(1) == 1 {
					t.Log(err)
				}
				took[i] = time.Since(begin)
			})
		}
		wg.Wait()
		slices.Sort(took)
		return took[clients*99/100], failures.Load()
	}
	crowd(500 * time.Millisecond) // to warm up
	for range 6 {                 // what this machine does besides does not go on indefinitely
		middle, failedThen := crowd(500 * time.Millisecond)
		edge, failed := crowd(0)
		t.Logf("%d clients: p99 is %v in the middle of a second, %v at its edge; %d and %d calls failed", clients, middle, edge, failedThen, failed)
		if edge <= 20*max(middle, 10*time.Millisecond) && failed <= failedThen+clients/4 {
			return
		}
	}
	t.Error("calls at the edge of a second take much longer than in its middle, or fail, in each of 6 rounds")
}

// TestF19_Cardinality: values that never come again leave nothing behind but counters in Redis, each of which expires.
func TestF19_Cardinality(t *testing.T) {
	db := redistest.Start(t)
	d := startDaemon(t, db, localRules)
	d.ready()
	var clients []rlsv3.RateLimitServiceClient
	for range 2 {
		clients = append(clients, d.client())
	}
	var next, late atomic.Int64
	attack := func(values int64) {
		t.Helper()
		end := next.Load() + values
		var wg sync.WaitGroup
		for c := range 64 {
			wg.Go(func() {
				for i := next.Add(1); i <= end; i = next.Add(1) {
					if _, err := clients[c%len(clients)].ShouldRateLimit(t.Context(), request("user", fmt.Sprintf("%d\n%x", i, i))); err != nil {
						late.Add(1) // what it does to Redis is the same
					}
				}
			})
		}
		wg.Wait()
		next.Store(end)
	}
	attack(manyValues / 10)
	before, _ := d.get("DEBUG", "/metrics")
	memory := d.metric("process_resident_memory_bytes")
	begin := time.Now()
	attack(manyValues)
	t.Logf("%d values in %v; %d calls were answered too late", manyValues, time.Since(begin), late.Load())
	after, _ := d.get("DEBUG", "/metrics")
	if a, b := strings.Count(before, "\n"), strings.Count(after, "\n"); b > a+20 || len(after) > 1<<20 {
		t.Errorf("/metrics has grown from %d to %d lines", a, b)
	}
	if strings.Contains(after, `\n`) {
		t.Error("/metrics has a value as a label")
	}
	grown := d.metric("process_resident_memory_bytes") - memory
	t.Logf("memory %.1f MB, +%.1f MB", memory/1e6, grown/1e6)
	if grown > 50e6 {
		t.Errorf("memory grew by %.0f MB, want at most 50", grown/1e6)
	}
	c := db.Client()
	keys, err := c.DBSize(t.Context()).Result()
	keys -= int64(len(c.Keys(t.Context(), "rl:{controls}*").Val()))
	if err != nil || keys > next.Load() || keys < next.Load()-late.Load() {
		t.Errorf("%d keys for %d values, %d of which came late; %v", keys, next.Load(), late.Load(), err)
	}
	for range 100 {
		key := c.RandomKey(t.Context()).Val()
		if ttl := c.TTL(t.Context(), key).Val(); ttl <= 0 || len(key) > 80 {
			t.Errorf("key %q has %d bytes and lives for %v", key, len(key), ttl)
		}
	}
}

// steady sends loadRate/4 requests a second, none of which may fail, until stopped, and counts them.
func steady(t *testing.T, client rlsv3.RateLimitServiceClient, check func(*rlsv3.RateLimitResponse)) (stop func() int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var calls, failed atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		begin := time.Now()
		for i := 0; ctx.Err() == nil; i++ {
			time.Sleep(time.Until(begin.Add(time.Duration(i) * 4 * time.Second / loadRate)))
			wg.Go(func() {
				calls.Add(1)
				answer, err := client.ShouldRateLimit(context.WithoutCancel(ctx), request("exact", "a"))
				if err == nil {
					check(answer)
				} else if failed.Add(1) < 5 {
					t.Errorf("a call failed: %v", err)
				}
			})
		}
	})
	stop = func() int64 {
		cancel()
		wg.Wait()
		if n := failed.Load(); n > 0 {
			t.Errorf("%d of %d calls failed", n, calls.Load())
		}
		return calls.Load()
	}
	t.Cleanup(func() { stop() })
	return stop
}

// TestF23_RollingRestarts replaces the server twenty times under load, as a rolling update does: the new one is ready
// before the old one gets SIGTERM. No call fails, and each is counted once. The tests of internal/envoy/rls show that a panic
// affects only one call.
func TestF23_RollingRestarts(t *testing.T) {
	t.Parallel()
	const restarts = 20
	db := redistest.Start(t)
	start := func() *daemon {
		t.Helper()
		d := startDaemon(t, db, localRules, "DRAIN_DELAY=100ms", "REDIS_OP_TIMEOUT=10s")
		d.ready()
		return d
	}
	d := start()
	names := manual.NewBuilderWithScheme("fleet")
	at := func(d *daemon) resolver.State {
		return resolver.State{Endpoints: []resolver.Endpoint{{Addresses: []resolver.Address{{Addr: d.At["GRPC"]}}}}}
	}
	names.InitialState(at(d))
	conn, err := grpc.NewClient("fleet:///", grpc.WithResolvers(names), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stop := steady(t, rlsv3.NewRateLimitServiceClient(conn), func(*rlsv3.RateLimitResponse) {})
	for range restarts {
		next := start()
		names.UpdateState(at(next))
		d.stop()
		d = next
	}
	calls := stop()
	d.stop() // which refunds what it leased, as those before it did
	answer, err := start().client().ShouldRateLimit(t.Context(), request("exact", "a"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d calls over %d restarts", calls, restarts)
	if counted := 1_000_000 - int64(answer.GetStatuses()[0].GetLimitRemaining()) - 1; counted != calls {
		t.Errorf("%d hits were counted of %d calls", counted, calls)
	}
}

// badRules are what must not be taken for rules.
var badRules = []string{
	"domain: shop\ndescriptors: [",
	"domain: shop\ndescriptors:\n  - key: exact\n    rate_limit: {unit: eon, requests_per_unit: 1}\n",
	"domain: shop\ndescriptors:\n  - key: exact\n    rate_limit: {unit: year, requests_per_unit: -1}\n",
	"domain: shop\ndescriptors:\n  - key: exact\n    rate_limt: {unit: year, requests_per_unit: 1}\n",
	"domain: shop\ndescriptors:\n  - key: exact\n  - key: exact\n",
	"domain: \"\"\n",
	"descriptors: &a [*a]\n",
	"\x00\x01",
}

// TestF24_BadReloads loads fifty invalid sets of rules, under load. Each decision is made by the good rules.
func TestF24_BadReloads(t *testing.T) {
	t.Parallel()
	const reloads = 50
	db := redistest.Start(t)
	dir := t.TempDir()
	rules := filepath.Join(dir, "rules.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(rules+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(rules+".new", rules); err != nil {
			t.Fatal(err)
		}
	}
	write(localRules)
	d := startDaemon(t, db, localRules, "RUNTIME_ROOT="+dir, "REDIS_OP_TIMEOUT=10s")
	d.ready()
	client := d.client()
	stop := steady(t, client, func(answer *rlsv3.RateLimitResponse) {
		s := answer.GetStatuses()[0]
		if answer.GetOverallCode() != rlsv3.RateLimitResponse_OK || s.GetCurrentLimit().GetRequestsPerUnit() != 1_000_000 ||
			s.GetCurrentLimit().GetUnit() != rlsv3.RateLimitResponse_RateLimit_YEAR {
			t.Errorf("a decision by other rules: %v", answer)
		}
	})
	const invalid = "ratelimit_service_config_load_error"
	before := d.metric(invalid)
	for i := range reloads {
		write(badRules[i%len(badRules)] + fmt.Sprintf("\n# %d\n", i))
		d.until(fmt.Sprintf("reload %d, of bad rules, is invalid", i), func() bool { return d.metric(invalid) > before+float64(i) })
	}
	calls := stop()
	t.Logf("%d calls over %d reloads that were invalid", calls, reloads)
	write(localRules + "# good again\n")
	answer, err := client.ShouldRateLimit(t.Context(), request("exact", "a"))
	if err != nil {
		t.Fatal(err)
	}
	if counted := 1_000_000 - int64(answer.GetStatuses()[0].GetLimitRemaining()) - 1; counted != calls {
		t.Errorf("%d hits were counted of %d calls", counted, calls)
	}
}
