package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

const localRules = `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 1000000000}
  - key: exact
    rate_limit: {unit: year, requests_per_unit: 1000000}
`

// TestAbsentRedis starts a server before its Redis: it serves within a second, and makes its first exact decision
// within a second of Redis being up.
func TestAbsentRedis(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	db.Kill()
	shipped.Path(t, "ratelimitd") // building it takes its time
	begin := time.Now()
	d := startDaemon(t, db, localRules)
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("the ports opened after %v, want within 1s", took)
	} else {
		t.Logf("the ports opened after %v", took)
	}
	client := d.client()
	if _, err := client.ShouldRateLimit(t.Context(), request("exact", "a")); err == nil {
		t.Error("a call without Redis was answered, though the policy is error")
	}
	time.Sleep(2 * time.Second) // so that waits between attempts to connect have grown
	db.Restart()
	exactAgain(t, d, client, "a")
}

// exactAgain waits until a decision on a counter that is new in Redis is made there, which must be within a second; ten
// times that fails, unless the machine was too busy to ask a hundred times in it.
func exactAgain(t *testing.T, d *daemon, client rlsv3.RateLimitServiceClient, value string) {
	t.Helper()
	const local = `ratelimitd_backend_fallback_total{policy="local",rule="shop.exact"}`
	begin := time.Now()
	for asked := 0; asked < 100 || time.Since(begin) < 10*time.Second; asked++ {
		before := d.metric(local)
		if _, err := client.ShouldRateLimit(t.Context(), request("exact", value)); err == nil && d.metric(local) == before {
			t.Logf("exact again after %v", time.Since(begin))
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no exact decision within %v of Redis' return, want 1s; the log is\n%s", time.Since(begin), d.Log.String())
}

// mayMiss is which part of the requests may go without an answer, beyond twice that of requests which need no Redis and are
// sent at the same time by the same clients. None does where the processors are free; here the clients, who are strict
// about their 20 ms, share them with the server, with Redis and with other tests, and those callers who find out that
// Redis is gone have but a quarter of their time left.
const mayMiss = 0.02

// TestRedisFails sends loadRate requests a second, each with a deadline of 20 ms, while Redis is killed, and while it
// hangs, for three seconds. All are answered.
func TestRedisFails(t *testing.T) {
	for _, fault := range []struct {
		name         string
		begin, after func(*redistest.Server)
	}{
		{"killed", (*redistest.Server).Kill, (*redistest.Server).Restart},
		{"stopped", (*redistest.Server).Stop, (*redistest.Server).Cont},
	} {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			db := redistest.Start(t)
			d := startDaemon(t, db, localRules, "DEFAULT_ON_FAILURE=local")
			playFault(t, d, fault.name, func() { fault.begin(db) }, func() { fault.after(db) })
		})
	}
}

// playFault sends requests to d, which decides locally while its store fails, before, during and after a fault of three
// seconds. Other load on the machine delays requests too, so the best of several rounds counts: requests that the
// server itself fails to answer would be missing in every round.
func playFault(t *testing.T, d *daemon, name string, begin, after func()) {
	t.Helper()
	var clients []rlsv3.RateLimitServiceClient
	for range 4 {
		clients = append(clients, d.client())
	}
	load := startLoad(t, clients)
	load.goesOn(t)
	load.report(t, "before")
	goroutines, memory := d.metric("go_goroutines"), d.metric("process_resident_memory_bytes")
	unanswered, noise := 1.0, 0.0
	var most, mostMemory float64
	for round := 0; round < 6 && unanswered > mayMiss+2*noise; round++ {
		begin()
		for range 15 {
			time.Sleep(200 * time.Millisecond)
			most = max(most, d.metric("go_goroutines"))
			mostMemory = max(mostMemory, d.metric("process_resident_memory_bytes"))
		}
		after()
		exactAgain(t, d, clients[0], name)
		unanswered, noise = load.report(t, "while it was "+name)
	}
	load.goesOn(t)
	load.report(t, "afterwards")
	load.stop()
	t.Logf("goroutines %v, at most +%v; memory +%.1f MB", goroutines, most-goroutines, (mostMemory-memory)/1e6)
	if most-goroutines > 1100 || mostMemory-memory > 50e6 {
		t.Errorf("goroutines grew by %v, want at most 1,100; memory by %v bytes, want at most 50 MB", most-goroutines, mostMemory-memory)
	}
	if unanswered > mayMiss+2*noise {
		t.Errorf("%.2f %% of the requests were not answered, and %.2f %% of those that need no Redis", 100*unanswered, 100*noise)
	}
}

// load is requests at an even rate, whatever becomes of them; what the machine was too busy to send in time is not sent
// late, in a burst that no one could answer. Every fourth one is followed by one that needs no Redis.
type load struct {
	cancel         context.CancelFunc
	wg             sync.WaitGroup
	counted, freed tally
}

// tally is what became of requests.
type tally struct {
	answered, failed atomic.Int64
	first            atomic.Pointer[error]
	slowest          atomic.Int64
}

// giveUp is when a client does not wait for its answer any more, as Envoy's filter by default.
const giveUp = 20 * time.Millisecond

func startLoad(t *testing.T, clients []rlsv3.RateLimitServiceClient) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{cancel: cancel}
	l.wg.Go(func() {
		next := time.Now()
		for i := 0; ctx.Err() == nil; i++ {
			time.Sleep(time.Until(next))
			if now := time.Now(); now.Sub(next) > giveUp {
				next = now
			}
			next = next.Add(time.Second / loadRate)
			client := clients[i%len(clients)]
			l.wg.Go(func() { l.counted.ask(context.WithoutCancel(ctx), client, request("user", fmt.Sprint(i%1000))) })
			if i%4 == 0 {
				l.wg.Go(func() { l.freed.ask(context.WithoutCancel(ctx), client, request("nobody", "limits this")) })
			}
		}
	})
	t.Cleanup(l.stop)
	return l
}

// goesOn waits until as many requests are answered as are sent in half a second.
func (l *load) goesOn(t *testing.T) {
	t.Helper()
	before := l.counted.answered.Load()
	testkit.Eventually(t, "requests are answered", func() bool { return l.counted.answered.Load()-before >= loadRate/2 })
}

func (l *load) stop() {
	l.cancel()
	l.wg.Wait()
}

func (n *tally) ask(ctx context.Context, client rlsv3.RateLimitServiceClient, r *rlsv3.RateLimitRequest) {
	ctx, cancel := context.WithTimeout(ctx, giveUp)
	defer cancel()
	begin := time.Now()
	_, err := client.ShouldRateLimit(ctx, r)
	took := int64(time.Since(begin))
	for old := n.slowest.Load(); took > old && !n.slowest.CompareAndSwap(old, took); old = n.slowest.Load() {
	}
	if err != nil {
		n.failed.Add(1)
		n.first.CompareAndSwap(nil, &err)
		return
	}
	n.answered.Add(1)
}

// report logs what has happened since the last report, and returns the fraction of requests without an answer, among
// all requests and among those that do not need Redis.
func (l *load) report(t *testing.T, when string) (counted, freed float64) {
	t.Helper()
	return l.counted.report(t, when), l.freed.report(t, when+", without Redis")
}

func (n *tally) report(t *testing.T, when string) float64 {
	t.Helper()
	answered, failed, first := n.answered.Swap(0), n.failed.Swap(0), n.first.Swap(nil)
	t.Logf("%s: %d answered, %d not, the slowest %v", when, answered, failed, time.Duration(n.slowest.Swap(0)))
	if first != nil {
		t.Logf("the first failure: %v", *first)
	}
	return float64(failed) / float64(max(answered+failed, 1))
}
