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

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// exactRules returns a version of rules, whose two limits tell which one they are of.
func exactRules(version int) string {
	return fmt.Sprintf(`
domain: shop
descriptors:
  - key: exact
    rate_limit: {unit: year, requests_per_unit: %d}
  - key: other
    rate_limit: {unit: year, requests_per_unit: %[1]d}
`, exactLimit+version)
}

// exactLimit is that of the first version.
const exactLimit = 1_000_000

// steady sends 250 requests a second, none of which may fail, until stopped, and counts them.
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
				answer, err := client.ShouldRateLimit(context.WithoutCancel(ctx), both())
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

// both returns a request with a descriptor for each of the two limits.
func both() *rlsv3.RateLimitRequest {
	return &rlsv3.RateLimitRequest{Domain: "shop", Descriptors: descriptorsOf("exact=a", "other=a")}
}

// counted expects that the server has counted so many calls with both descriptors.
func (d *daemon) counted(calls int64) {
	d.t.Helper()
	answer := decide(d.t, d.client(), both())
	for _, s := range answer.GetStatuses() {
		if n := int64(s.GetCurrentLimit().GetRequestsPerUnit()-s.GetLimitRemaining()) - 1; n != calls {
			d.t.Errorf("%d hits were counted of %d calls", n, calls)
		}
	}
}

// TestF23_RollingRestarts replaces the server eight times under load, as a rolling update does: the new one is ready
// before the old one gets SIGTERM. No call fails, and each is counted once. The tests of internal/envoy/rls show that a panic
// affects only one call.
func TestF23_RollingRestarts(t *testing.T) {
	t.Parallel()
	const restarts = 8
	db := redistest.Start(t)
	start := func() *daemon {
		t.Helper()
		d := startDaemon(t, db, exactRules(0), "DRAIN_DELAY=100ms", "REDIS_OP_TIMEOUT=10s")
		d.ready()
		return d
	}
	d := start()
	door := testkit.NewProxy(t, d.At["GRPC"]) // connections stay with the old server until it ends them
	conn := d.dialTo(door.Addr())
	stop := steady(t, rlsv3.NewRateLimitServiceClient(conn), func(*rlsv3.RateLimitResponse) {})
	for range restarts {
		next := start()
		door.Target(next.At["GRPC"])
		begin := time.Now()
		if d.stop(); time.Since(begin) > 15*time.Second {
			t.Errorf("a server ended after %v", time.Since(begin))
		}
		d = next
	}
	calls := stop()
	d.stop() // which refunds what it leased, as those before it did
	t.Logf("%d calls over %d restarts", calls, restarts)
	start().counted(calls)
}

// badRules are what must not be taken for rules.
var badRules = []string{
	"domain: shop\ndescriptors: [",
	"domain: shop\ndescriptors:\n  - key: exact\n    rate_limit: {unit: eon, requests_per_unit: 1}\n",
	"domain: shop\ndescriptors:\n  - key: exact\n    rate_limit: {unit: year, requests_per_unit: -1}\n",
	"domain: shop\ndescriptors:\n  - key: exact\n    rate_limt: {unit: year, requests_per_unit: 1}\n",
	"domain: shop\ndescriptors:\n  - key: exact\n  - key: exact\n",
	"domain: shop\ndescriptors:\n  - key: \"\"\n    rate_limit: {unit: year, requests_per_unit: 1}\n",
	"domain: \"\"\n",
	"descriptors: &a [*a]\n",
	"\x00\x01",
}

// TestF24_Reloads loads good and bad rules in turn, under load. Each call is decided by one version of the good rules, and counted once.
func TestF24_Reloads(t *testing.T) {
	t.Parallel()
	const reloads = 16 // of each kind
	dir := t.TempDir()
	rules := filepath.Join(dir, "rules.yaml")
	write := func(text string) {
		t.Helper()
		certstest.Write(t, rules+".new", []byte(text))
		testkit.Check(t, os.Rename(rules+".new", rules))
	}
	write(exactRules(0))
	d := startDaemon(t, redistest.Start(t), "", "RUNTIME_ROOT="+dir, "REDIS_OP_TIMEOUT=10s")
	d.ready()
	stop := steady(t, d.client(), func(answer *rlsv3.RateLimitResponse) {
		one, other := answer.GetStatuses()[0].GetCurrentLimit(), answer.GetStatuses()[1].GetCurrentLimit()
		if n := one.GetRequestsPerUnit(); n != other.GetRequestsPerUnit() || n < exactLimit || n > exactLimit+reloads ||
			answer.GetOverallCode() != rlsv3.RateLimitResponse_OK || one.GetUnit() != rlsv3.RateLimitResponse_RateLimit_YEAR {
			t.Errorf("a decision by other rules, or by two versions: %v", answer)
		}
	})
	const invalid = "ratelimit_service_config_load_error"
	before := d.metric(invalid)
	for i := 1; i <= reloads; i++ {
		write(badRules[i%len(badRules)] + fmt.Sprintf("\n# %d\n", i))
		d.until(fmt.Sprintf("reload %d, of bad rules, is invalid", i), func() bool { return d.metric(invalid) >= before+float64(i) })
		write(exactRules(i))
		d.waits("DEBUG", "/rlconfig", fmt.Sprintf("requests_per_unit=%d", exactLimit+i))
	}
	d.counted(stop())
}
