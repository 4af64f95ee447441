package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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

const exactRules = `
domain: shop
descriptors:
  - key: exact
    rate_limit: {unit: year, requests_per_unit: 1000000}
`

// steady sends 250 requests a second until stopped, none of which may fail, and counts them.
func steady(t *testing.T, client rlsv3.RateLimitServiceClient, check func(*rlsv3.RateLimitResponse)) (stop func() int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var calls, failed atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		begin := time.Now()
		for i := 0; ctx.Err() == nil; i++ {
			time.Sleep(time.Until(begin.Add(time.Duration(i) * 4 * time.Millisecond)))
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

// TestF23_RollingRestarts replaces the server eight times under load, like a rolling update: the new server is ready before
// the old one gets SIGTERM. No call fails, and each is counted once. Tests of internal/envoy/rls show that a panic affects
// only one call.
func TestF23_RollingRestarts(t *testing.T) {
	t.Parallel()
	const restarts = 8
	db := redistest.Start(t)
	start := func() *daemon {
		t.Helper()
		d := startDaemon(t, db, exactRules, "DRAIN_DELAY=100ms", "REDIS_OP_TIMEOUT=10s")
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
	d.stop() // refunds its leases, like the servers before it
	answer, err := start().client().ShouldRateLimit(t.Context(), request("exact", "a"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d calls over %d restarts", calls, restarts)
	if counted := 1_000_000 - int64(answer.GetStatuses()[0].GetLimitRemaining()) - 1; counted != calls {
		t.Errorf("%d hits were counted of %d calls", counted, calls)
	}
}

// badRules are invalid rules.
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

// TestF24_BadReloads loads sixteen invalid sets of rules under load. The good rules make all decisions.
func TestF24_BadReloads(t *testing.T) {
	t.Parallel()
	const reloads = 16
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
	write(exactRules)
	d := startDaemon(t, db, exactRules, "RUNTIME_ROOT="+dir, "REDIS_OP_TIMEOUT=10s")
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
	write(exactRules + "# good again\n")
	answer, err := client.ShouldRateLimit(t.Context(), request("exact", "a"))
	if err != nil {
		t.Fatal(err)
	}
	if counted := 1_000_000 - int64(answer.GetStatuses()[0].GetLimitRemaining()) - 1; counted != calls {
		t.Errorf("%d hits were counted of %d calls", counted, calls)
	}
}
