package main

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/ratelimitd/ratelimitd/internal/shares"
	"github.com/ratelimitd/ratelimitd/internal/shares/sharestest"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis/redistest"
)

const quotaRules = `
domain: edge
descriptors:
  - key: fast
    rate_limit: {unit: second, requests_per_unit: 100, burst: 200, algorithm: token_bucket, on_failure: deny, rlqs: true}
  - key: strict
    rate_limit: {unit: day, requests_per_unit: 6000, rlqs: true} # of a day, so that no window ends
`

// quotaClient is a client that decides by itself as Envoy does, but reports each second. Without an assignment it denies.
type quotaClient struct {
	mu     sync.Mutex
	bucket sharestest.Bucket
}

const quotaReports = time.Second // between two reports

// startQuotaClient starts a client of one bucket that gets so many requests a second. When its stream ends
// it tries the next server.
func startQuotaClient(t *testing.T, key string, demand float64, servers ...*daemon) *quotaClient {
	t.Helper()
	c := new(quotaClient)
	c.bucket.NoAssignment = sharestest.DenyAll
	ctx, cancel := context.WithCancel(t.Context())
	var clients []rlqspb.RateLimitQuotaServiceClient
	for _, d := range servers {
		clients = append(clients, rlqspb.NewRateLimitQuotaServiceClient(d.dial()))
	}
	var all sync.WaitGroup
	all.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for last, rest := time.Now(), 0.0; ctx.Err() == nil; <-tick.C {
			at := time.Now()
			rest += demand * at.Sub(last).Seconds()
			last = at
			c.locked(func(b *sharestest.Bucket, now shares.Micros) { b.Request(now, uint64(rest)) })
			rest -= float64(uint64(rest))
		}
	})
	all.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			c.stream(ctx, clients[i%len(clients)], key)
		}
	})
	t.Cleanup(func() { cancel(); all.Wait() })
	return c
}

func (c *quotaClient) locked(do func(b *sharestest.Bucket, now shares.Micros)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do(&c.bucket, shares.Micros(time.Now().UnixMicro()))
}

// stream reports until the stream ends.
func (c *quotaClient) stream(ctx context.Context, server rlqspb.RateLimitQuotaServiceClient, key string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := server.StreamRateLimitQuotas(ctx)
	if err != nil {
		return
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	reading.Go(func() {
		defer cancel()
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			for _, a := range m.GetBucketAction() {
				c.locked(func(b *sharestest.Bucket, now shares.Micros) { b.Receive(now, assignmentOf(a)) })
			}
		}
	})
	id := &rlqspb.BucketId{Bucket: map[string]string{key: "x"}}
	tick := time.NewTicker(quotaReports)
	defer tick.Stop()
	for {
		var u sharestest.Usage
		c.locked(func(b *sharestest.Bucket, _ shares.Micros) { u = b.Report() })
		err := stream.Send(&rlqspb.RateLimitQuotaUsageReports{Domain: "edge", BucketQuotaUsages: []*rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{
			{BucketId: id, NumRequestsAllowed: u.Allowed, NumRequestsDenied: u.Denied},
		}})
		if err != nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// assignmentOf returns what a message says.
func assignmentOf(a *rlqspb.RateLimitQuotaResponse_BucketAction) shares.Assignment {
	q := a.GetQuotaAssignmentAction()
	if q == nil {
		return shares.Assignment{Kind: shares.Abandon}
	}
	out := shares.Assignment{TTL: uint32(q.GetAssignmentTimeToLive().GetSeconds())}
	b := q.GetRateLimitStrategy().GetTokenBucket()
	if b == nil {
		if q.GetRateLimitStrategy().GetBlanketRule() != typepb.RateLimitStrategy_DENY_ALL {
			panic("this client knows no rule that allows everything")
		}
		out.Kind = shares.DenyAll
		return out
	}
	out.MaxTokens, out.TokensPerFill, out.FillInterval = b.GetMaxTokens(), b.GetTokensPerFill().GetValue(), uint32(b.GetFillInterval().GetSeconds())
	return out
}

// rate returns the rate that the client may use now.
func (c *quotaClient) rate() (rate float64) {
	c.locked(func(b *sharestest.Bucket, now shares.Micros) { rate = b.Rate(now) })
	return rate
}

// admitted returns how many requests the client has admitted.
func (c *quotaClient) admitted() (n float64) {
	c.locked(func(b *sharestest.Bucket, _ shares.Micros) { n = float64(b.Admitted) })
	return n
}

// TestQuotaReplicas: two servers agree on their parts of one limit. When one of them dies with its clients, the other one has the whole
// limit within two intervals of Envoy's reports.
func TestQuotaReplicas(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	servers := []*daemon{startDaemon(t, db, quotaRules), startDaemon(t, db, quotaRules)}
	begin := time.Now()
	one := startQuotaClient(t, "fast", 150, servers[0])
	two := startQuotaClient(t, "fast", 50, servers[1]) // 100, with the next one
	three := startQuotaClient(t, "fast", 50, servers[1])
	rates := func() string {
		return fmt.Sprintf("rates of %.1f, %.1f and %.1f", one.rate(), two.rate(), three.rate())
	}
	near := func(x, want float64) bool { return x > 0.85*want && x < 1.15*want }
	took := testkit.Eventually(t, "each client has a third", func() bool {
		return near(one.rate(), 33.3) && near(two.rate(), 33.3) && near(three.rate(), 33.3)
	}, rates)
	t.Logf("each client has a third after %v", took)
	sum := one.admitted() + two.admitted() + three.admitted()
	if most := 200 + 100*time.Since(begin).Seconds() + 200; sum > most { // the tokens of first assignments are a second of the rate at most
		t.Errorf("%.0f were admitted, want at most %.0f", sum, most)
	}

	servers[0].shows()

	servers[1].kill()
	took = testkit.Eventually(t, "the client that is left has the whole limit", func() bool { return one.rate() > 95 }, rates)
	t.Logf("the client that is left has the whole limit after %v", took)
	if took > 12*time.Second { // two intervals, and two reports of this client
		t.Errorf("it took %v", took)
	}
}

// shows checks that each way to look at a server shows the limit that it divides.
func (d *daemon) shows() {
	d.t.Helper()
	page, _ := d.get("DEBUG", "/ui/")
	for what, x := range map[string]struct{ text, pattern string }{
		"rlqs":        {d.command("rlqs"), `(?m)^edge fast=x: \d.*/s assigned of a limit of 100.0/s, to 1 client, fast; \d+ left; this server has .*\n.*\n  \S+ +assigned +1 +1\d\d`},
		"rlqs, JSON":  {d.command("rlqs", "--output", "json"), `"domain":"edge".*"rate":100,`},
		"status":      {d.command("status"), `divided +edge fast=x: \d.*/s assigned`},
		"explain":     {d.command("explain", "edge", "fast=x"), `divided among clients that decide by themselves: \d.*/s assigned`},
		"top":         {d.command("top", "--once"), `(?m)^ *\d{3,} .* edge.fast +fast=x$`},
		"the console": {page, `(?s)Limits divided among Envoys.*fast=x.*1 Envoy.*limit 100.0.*assigned`},
	} {
		if !regexp.MustCompile(x.pattern).MatchString(x.text) {
			d.t.Errorf("%s shows %s", what, x.text)
		}
	}
}

// TestQuotaOutage: when Redis is gone, shares stay for a TTL in fast mode, and then on_failure decides. In strict mode no more is admitted
// than was debited.
func TestQuotaOutage(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	d := startDaemon(t, db, quotaRules)
	fast := startQuotaClient(t, "fast", 150, d)
	strict := startQuotaClient(t, "strict", 100, d)
	testkit.Eventually(t, "both have shares that follow their demand", func() bool { return fast.rate() > 95 && strict.rate() > 50 },
		func() string { return fmt.Sprint(fast.rate(), strict.rate()) })
	db.Stop()
	begin := time.Now()
	before := strict.admitted()
	testkit.Eventually(t, "10 s pass", func() bool { return time.Since(begin) > 10*time.Second })
	if r := fast.rate(); r < 90 || r > 110 {
		t.Errorf("after 10 s the rate is %.1f, want 100", r)
	}
	testkit.Eventually(t, "on_failure: deny decides", func() bool { return fast.rate() == 0 })
	t.Logf("on_failure: deny decides after %v", time.Since(begin))
	testkit.Eventually(t, "what strict mode has leased is nearly used up", func() bool { return strict.rate() < 5 })
	admitted := strict.admitted()
	t.Logf("in strict mode %.0f more were admitted in %v", admitted-before, time.Since(begin))
	db.Cont()
	client, left := d.client(), 0.0
	testkit.Eventually(t, "Redis says what was debited", func() bool {
		a, err := client.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "edge", Descriptors: descriptorsOf("strict=x")})
		if err != nil {
			return false
		}
		left = float64(a.GetStatuses()[0].GetLimitRemaining())
		return true
	})
	if debited := 6000 - left; admitted > debited {
		t.Errorf("in strict mode %.0f were admitted, and %.0f were debited", admitted, debited)
	}
	testkit.Eventually(t, "both have shares again", func() bool { return fast.rate() > 90 && strict.rate() > 5 },
		func() string { return fmt.Sprint(fast.rate(), strict.rate()) })
}
