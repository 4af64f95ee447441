package main

import (
	"context"
	"sync"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"github.com/ratelimitd/ratelimitd/internal/shares"
	"github.com/ratelimitd/ratelimitd/internal/shares/sharestest"
)

// quotaLimit is the limit of the scene about RLQS, whose window does not end while the scene is played.
const quotaLimit = 3000

// Of the clients that decide by themselves. Together with the calls they ask for more than the limit has.
const (
	quotaDemand  = 60 // requests a second, of each
	quotaReports = time.Second
	quotaFor     = 20 * time.Second
)

// withQuotas: clients that decide by themselves, one at each replica, and calls take from one counter. Together they get no more than the
// limit.
func withQuotas(g *stage) {
	ctx, cancel := context.WithTimeout(g.ctx, quotaFor)
	defer cancel()
	clients := make([]quotaClient, len(g.on))
	var all sync.WaitGroup
	for i, r := range g.on {
		c := &clients[i]
		c.bucket.NoAssignment = sharestest.DenyAll // what passes without an assignment is in no bound
		all.Go(func() { c.requests(ctx) })
		all.Go(func() { c.reports(ctx, g.domain, rlqsv3.NewRateLimitQuotaServiceClient(r.conn)) })
	}
	calls, decided := 0, uint64(0)
	for ctx.Err() == nil {
		if g.ask(take(1)).ok {
			calls++
		}
		time.Sleep(10 * time.Millisecond)
	}
	all.Wait()
	for i := range clients {
		decided += clients[i].bucket.Admitted
	}
	if sum := uint64(calls) + decided; sum > quotaLimit || calls == 0 || decided == 0 {
		g.finds("calls got %d and clients that decide by themselves %d of %d", calls, decided, quotaLimit)
	}
}

// quotaClient decides by itself as Envoy does.
type quotaClient struct {
	mu     sync.Mutex
	bucket sharestest.Bucket
}

func (c *quotaClient) locked(do func(b *sharestest.Bucket, now shares.Micros)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do(&c.bucket, shares.Micros(time.Now().UnixMicro()))
}

// requests makes requests until ctx ends.
func (c *quotaClient) requests(ctx context.Context) {
	tick := time.NewTicker(time.Second / quotaDemand)
	defer tick.Stop()
	for ctx.Err() == nil {
		c.locked(func(b *sharestest.Bucket, now shares.Micros) { b.Request(now, 1) })
		<-tick.C
	}
}

// reports reports, and obeys, until ctx ends. A stream that ends is opened again.
func (c *quotaClient) reports(ctx context.Context, domain string, server rlqsv3.RateLimitQuotaServiceClient) {
	for ctx.Err() == nil {
		if stream, err := server.StreamRateLimitQuotas(ctx); err == nil {
			var reading sync.WaitGroup
			reading.Go(func() { c.obey(stream) })
			for c.report(domain, stream) == nil {
				select {
				case <-time.After(quotaReports):
				case <-ctx.Done():
				}
			}
			reading.Wait()
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (c *quotaClient) report(domain string, stream rlqsv3.RateLimitQuotaService_StreamRateLimitQuotasClient) error {
	var u sharestest.Usage
	c.locked(func(b *sharestest.Bucket, _ shares.Micros) { u = b.Report() })
	return stream.Send(&rlqsv3.RateLimitQuotaUsageReports{Domain: domain, BucketQuotaUsages: []*rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{{
		BucketId:           &rlqsv3.BucketId{Bucket: map[string]string{"k": "v"}},
		NumRequestsAllowed: u.Allowed, NumRequestsDenied: u.Denied,
	}}})
}

// obey takes assignments until the stream ends.
func (c *quotaClient) obey(stream rlqsv3.RateLimitQuotaService_StreamRateLimitQuotasClient) {
	for {
		m, err := stream.Recv()
		if err != nil {
			return
		}
		for _, action := range m.GetBucketAction() {
			a := shares.Assignment{Kind: shares.Abandon}
			if q := action.GetQuotaAssignmentAction(); q != nil {
				a.Kind, a.TTL = shares.DenyAll, uint32(q.GetAssignmentTimeToLive().GetSeconds())
				if t := q.GetRateLimitStrategy().GetTokenBucket(); t != nil {
					a.Kind, a.MaxTokens = shares.TokenBucket, t.GetMaxTokens()
					a.TokensPerFill, a.FillInterval = t.GetTokensPerFill().GetValue(), uint32(t.GetFillInterval().GetSeconds())
				}
			}
			c.locked(func(b *sharestest.Bucket, now shares.Micros) { b.Receive(now, a) })
		}
	}
}
