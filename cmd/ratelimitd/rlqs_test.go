package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rlqstest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/sharestest"
)

const quotaRules = `
domain: edge
descriptors:
  - key: fast
    rate_limit: {unit: second, requests_per_unit: 100, burst: 200, algorithm: token_bucket, on_failure: deny, rlqs: true}
  - key: strict
    rate_limit: {unit: day, requests_per_unit: 6000, rlqs: true} # of a day, so that no window ends
`

// startQuotaClient starts a client of a bucket with demand requests a second. When its stream ends, it connects to the next
// server.
func startQuotaClient(t *testing.T, key string, demand float64, servers ...*daemon) *rlqstest.Client {
	t.Helper()
	c := rlqstest.New("edge", key, "x", rlqstest.Config{NoAssignment: sharestest.DenyAll})
	ctx, cancel := context.WithCancel(t.Context())
	var conns []grpc.ClientConnInterface
	for _, d := range servers {
		conns = append(conns, d.dial())
	}
	var all sync.WaitGroup
	all.Go(func() { c.Run(ctx, demand, conns...) })
	t.Cleanup(func() { cancel(); all.Wait() })
	return c
}

// TestQuotaReplicas: two servers agree on their parts of one limit. When one of them and its clients die, the other one has the whole
// limit within two intervals of Envoy's reports.
func TestQuotaReplicas(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	servers := []*daemon{startDaemon(t, db, quotaRules), startDaemon(t, db, quotaRules)}
	begin := time.Now()
	one := startQuotaClient(t, "fast", 150, servers[0])
	two := startQuotaClient(t, "fast", 50, servers[1]) // 100 a second, with the next one
	three := startQuotaClient(t, "fast", 50, servers[1])
	rates := func() string {
		return fmt.Sprintf("rates of %.1f, %.1f and %.1f", one.Rate(), two.Rate(), three.Rate())
	}
	third := func(c *rlqstest.Client) bool { // has reported again after its first report
		messages, _ := c.Received()
		return c.Rate() > 0.85*33.3 && c.Rate() < 1.15*33.3 && messages > 2
	}
	took := testkit.Eventually(t, "each client has a third", func() bool { return third(one) && third(two) && third(three) }, rates)
	t.Logf("each client has a third after %v", took)
	sum := float64(one.Admitted() + two.Admitted() + three.Admitted())
	if most := 200 + 100*(time.Since(begin).Seconds()+1.3); sum > most { // the bound of package shares
		t.Errorf("%.0f were admitted, want at most %.0f", sum, most)
	}

	servers[0].shows()

	servers[1].kill()
	took = testkit.Eventually(t, "the client that is left has the whole limit", func() bool { return one.Rate() > 95 }, rates)
	t.Logf("the client that is left has the whole limit after %v", took)
	if took > 30*time.Second { // two intervals and two reports of this client take 12 s
		t.Errorf("it took %v", took)
	}
}

// shows checks that all views of a server show its divided limit.
func (d *daemon) shows() {
	d.t.Helper()
	page, _ := d.get("DEBUG", "/ui/")
	for what, x := range map[string]struct{ text, pattern string }{
		"rlqs":        {d.command("rlqs"), `(?m)^edge fast=x: \d.*/s assigned of a limit of 100.0/s, to 1 client, fast; -?\d+ left; this replica may assign .* of all replicas\n.*\n  \S+ +assigned +1 +1\d\d`},
		"rlqs, JSON":  {d.command("rlqs", "--output", "json"), `"domain":"edge".*"rate":100,`},
		"status":      {d.command("status"), `divided +- +edge fast=x: \d.*/s assigned`},
		"explain":     {d.command("explain", "edge", "fast=x"), `divided among RLQS clients: \d.*/s assigned`},
		"top":         {d.command("top", "--once"), `(?m)^ *\d{3,} .* edge.fast +edge fast=x$`},
		"the console": {page, `(?s)Limits divided among Envoys.*fast=x.*1 Envoy.*limit 100.0.*assigned`},
	} {
		if !regexp.MustCompile(x.pattern).MatchString(x.text) {
			d.t.Errorf("%s shows %s", what, x.text)
		}
	}
}

// TestQuotaOutage: without Redis, shares stay for a TTL in fast mode, and then on_failure decides. In strict mode, no more is admitted
// than was debited.
func TestQuotaOutage(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	d := startDaemon(t, db, quotaRules)
	fast := startQuotaClient(t, "fast", 150, d)
	strict := startQuotaClient(t, "strict", 100, d)
	testkit.Eventually(t, "both have shares that follow their demand", func() bool { return fast.Rate() > 95 && strict.Rate() > 50 },
		func() string { return fmt.Sprint(fast.Rate(), strict.Rate()) })
	db.Stop()
	begin := time.Now()
	before := strict.Admitted()
	testkit.Eventually(t, "10 s pass", func() bool { return time.Since(begin) > 10*time.Second })
	if r := fast.Rate(); r < 90 || r > 110 {
		t.Errorf("after 10 s the rate is %.1f, want 100", r)
	}
	testkit.Eventually(t, "on_failure: deny decides", func() bool { return fast.Rate() == 0 })
	t.Logf("on_failure: deny decides after %v", time.Since(begin))
	testkit.Eventually(t, "what strict mode has leased is nearly used up", func() bool { return strict.Rate() < 5 })
	admitted := strict.Admitted()
	t.Logf("in strict mode %d more were admitted in %v", admitted-before, time.Since(begin))
	db.Cont()
	if debited := d.debited("strict=x", 6000); float64(admitted) > debited {
		t.Errorf("in strict mode %d were admitted, and %.0f were debited", admitted, debited)
	}
	testkit.Eventually(t, "both have shares again", func() bool { return fast.Rate() > 90 && strict.Rate() > 5 },
		func() string { return fmt.Sprint(fast.Rate(), strict.Rate()) })
}

// TestQuotaStreamsEnd: before a server ends streams, at GRPC_MAX_CONNECTION_AGE or when it stops, it renews the clients' shares.
func TestQuotaStreamsEnd(t *testing.T) {
	t.Parallel()
	d := startProcess(t, quotaRules, "BACKEND_TYPE=memory", "GRPC_MAX_CONNECTION_AGE=6s", "GRPC_MAX_CONNECTION_AGE_GRACE=1m", "DRAIN_DELAY=1s")
	c := startQuotaClient(t, "fast", 150, d)
	ended := func() string { _, err := c.Received(); return status.Convert(err).Message() }
	testkit.Eventually(t, "the stream ends for its age", func() bool { return strings.Contains(ended(), "GRPC_MAX_CONNECTION_AGE") }, ended)
	if r := c.Rate(); r == 0 {
		t.Error("the client has no assignment after that")
	}
	testkit.Eventually(t, "the client has connected again", func() bool { return d.metric("ratelimitd_rlqs_streams") == 1 && c.Rate() > 50 })

	before := c.Admitted()
	begun := time.Now()
	d.stop()
	t.Logf("it took %v to stop", time.Since(begun))
	if took := time.Since(begun); took > 6*time.Second { // DRAIN_DELAY, a second for streams, and a margin for a busy machine
		t.Errorf("it took %v to stop", took)
	}
	testkit.Eventually(t, "the client goes on by what it was assigned", func() bool { return c.Admitted() > before })
	if _, err := c.Received(); status.Code(err) != codes.Unavailable {
		t.Errorf("the last stream ended with %v", err)
	}
}

// TestQuotaFailover: replicas' rows and counters survive failovers of Redis without data loss. In strict mode, no more is admitted than
// was debited.
func TestQuotaFailover(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) (url string, change func()){"cluster": startQuotaCluster, "sentinel": startQuotaWatched} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, change := start(t)
			env := []string{"BACKEND_TYPE=redis", "REDIS_TYPE=" + name, "REDIS_URL=" + url}
			servers := []*daemon{startProcess(t, quotaRules, env...), startProcess(t, quotaRules, env...)}
			one, two := startQuotaClient(t, "strict", 50, servers[0]), startQuotaClient(t, "strict", 50, servers[1])
			sum := func() uint64 { return one.Admitted() + two.Admitted() }
			said := func() string {
				return fmt.Sprintf("%d were admitted, at rates of %.1f and %.1f", sum(), one.Rate(), two.Rate())
			}
			testkit.Eventually(t, "both clients have shares", func() bool { return one.Rate() > 20 && two.Rate() > 20 }, said)
			change()
			before := sum()
			testkit.Eventually(t, "both go on", func() bool { return sum() > before+600 && one.Rate() > 5 && two.Rate() > 5 }, said)
			admitted := sum()
			debited := servers[0].debited("strict=x", 6000)
			t.Logf("%d were admitted before the masters had changed, and %d in all; %.0f were debited", before, admitted, debited)
			if float64(admitted) > debited {
				t.Errorf("%d were admitted, and %.0f were debited", admitted, debited)
			}
		})
	}
}

// startQuotaCluster starts a Redis Cluster, and returns a function that changes all of its masters.
func startQuotaCluster(t *testing.T) (url string, change func()) {
	t.Helper()
	all := redistest.Cluster(t, 3)
	return all[0].Addr(), func() {
		redistest.NodeTimeout(all, 5*time.Second)
		for _, replica := range all[3:] {
			testkit.Eventually(t, "another master", func() bool {
				_, _ = replica.Try("CLUSTER", "FAILOVER") // fails during another failover
				return replica.IsMaster()
			})
		}
	}
}

// startQuotaWatched starts a Redis with sentinels, and returns a function that changes its master.
func startQuotaWatched(t *testing.T) (url string, change func()) {
	t.Helper()
	w := redistest.StartWatched(t)
	return w.URL(), func() {
		w.Master.CLI("CLIENT", "PAUSE", "5000", "WRITE") // prevents data loss
		testkit.Eventually(t, "the replica has what the master has", w.Replica.InStep)
		testkit.Eventually(t, "a failover", func() bool { return w.Sentinels[0].CLI("SENTINEL", "FAILOVER", redistest.MasterName) == "OK" })
		testkit.Eventually(t, "another master", w.Replica.IsMaster)
	}
}

// debited returns the consumed hits of a limit, once its counter is readable.
func (d *daemon) debited(descriptor string, limit float64) (hits float64) {
	d.t.Helper()
	client := d.client()
	testkit.Eventually(d.t, "Redis says what was debited", func() bool {
		a, err := client.ShouldRateLimit(d.t.Context(), &rlsv3.RateLimitRequest{Domain: "edge", Descriptors: descriptorsOf(descriptor)})
		if err != nil {
			return false
		}
		hits = limit - float64(a.GetStatuses()[0].GetLimitRemaining())
		return true
	})
	return hits
}

// TestQuotaCallersElsewhere: RLS callers of a replica without streams get as much as each client of the other replica.
func TestQuotaCallersElsewhere(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	servers := []*daemon{startDaemon(t, db, quotaRules), startDaemon(t, db, quotaRules)}
	one, two := startQuotaClient(t, "fast", 100, servers[0]), startQuotaClient(t, "fast", 100, servers[0])
	var admitted atomic.Int64
	calls := rlsv3.NewRateLimitServiceClient(servers[1].dial())
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			<-tick.C
			got, err := calls.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: "edge", Descriptors: []*commonv3.RateLimitDescriptor{
				{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "fast", Value: "x"}}},
			}})
			if err == nil && got.GetOverallCode() == rlsv3.RateLimitResponse_OK {
				admitted.Add(1)
			}
		}
	})
	t.Cleanup(func() { cancel(); all.Wait() })
	begin, before := time.Now(), int64(0)
	testkit.Eventually(t, "RLS callers get a part like that of a client", func() bool {
		if time.Since(begin) < 3*time.Second {
			return false
		}
		got := float64(admitted.Load()-before) / time.Since(begin).Seconds()
		begin, before = time.Now(), admitted.Load()
		return got > 24 && got < 45
	}, func() string { return fmt.Sprint(one.Rate(), two.Rate(), admitted.Load()) })
}
