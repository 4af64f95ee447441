// Package rlqstest is a client that decides by itself as Envoy does, for tests with real servers: the fake Envoy of package sharestest,
// with a stream. It reports each second, not every five as Envoy does, and denies what it has no assignment for.
package rlqstest

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ratelimitd/ratelimitd/internal/shares"
	"github.com/ratelimitd/ratelimitd/internal/shares/sharestest"
)

const (
	reportEvery  = time.Second
	requestEvery = 20 * time.Millisecond // requests come in bunches
	again        = 100 * time.Millisecond
)

// Client is a client of one bucket. Its methods may be called concurrently.
type Client struct {
	domain string
	name   string // by which a server knows it again
	id     *rlqspb.BucketId

	mu       sync.Mutex
	bucket   sharestest.Bucket
	assigned int   // messages
	ended    error // why the last stream ended
}

// New returns a client of a bucket, whose id is one entry.
func New(domain, key, value string) *Client {
	c := &Client{domain: domain, name: rand.Text(), id: &rlqspb.BucketId{Bucket: map[string]string{key: value}}}
	c.bucket.NoAssignment = sharestest.DenyAll
	return c
}

// Run makes so many requests a second, and reports, until ctx ends. When its stream ends it connects to the next server.
func (c *Client) Run(ctx context.Context, demand float64, servers ...grpc.ClientConnInterface) {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { c.request(ctx, demand) })
	for i := 0; ctx.Err() == nil; i++ {
		err := c.stream(ctx, rlqspb.NewRateLimitQuotaServiceClient(servers[i%len(servers)]))
		c.locked(func(*sharestest.Bucket, shares.Micros) { c.ended = err })
		select {
		case <-time.After(again):
		case <-ctx.Done():
		}
	}
}

func (c *Client) locked(do func(b *sharestest.Bucket, now shares.Micros)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do(&c.bucket, shares.Micros(time.Now().UnixMicro()))
}

func (c *Client) request(ctx context.Context, demand float64) {
	tick := time.NewTicker(requestEvery)
	defer tick.Stop()
	for last, rest := time.Now(), 0.0; ctx.Err() == nil; <-tick.C {
		at := time.Now()
		rest += demand * at.Sub(last).Seconds()
		last = at
		c.locked(func(b *sharestest.Bucket, now shares.Micros) { b.Request(now, uint64(rest)) })
		rest -= float64(uint64(rest))
	}
}

// stream reports, and does what the server says, until the stream ends. It returns why it did.
func (c *Client) stream(ctx context.Context, server rlqspb.RateLimitQuotaServiceClient) error {
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, "x-ratelimitd-client", c.name))
	defer cancel()
	stream, err := server.StreamRateLimitQuotas(ctx)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.obey(stream) }()
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		var u sharestest.Usage
		c.locked(func(b *sharestest.Bucket, _ shares.Micros) { u = b.Report() })
		_ = stream.Send(&rlqspb.RateLimitQuotaUsageReports{ // Recv says what is wrong
			Domain: c.domain, BucketQuotaUsages: []*rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{
				{BucketId: c.id, NumRequestsAllowed: u.Allowed, NumRequestsDenied: u.Denied},
			},
		})
		select {
		case <-tick.C:
		case err := <-ended:
			return err
		}
	}
}

// obey does what the server says until the stream ends.
func (c *Client) obey(stream rlqspb.RateLimitQuotaService_StreamRateLimitQuotasClient) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		c.locked(func(b *sharestest.Bucket, now shares.Micros) {
			for _, a := range m.GetBucketAction() {
				b.Receive(now, Assignment(a))
			}
			c.assigned++
		})
	}
}

// Assignment returns what a message says.
func Assignment(a *rlqspb.RateLimitQuotaResponse_BucketAction) shares.Assignment {
	q := a.GetQuotaAssignmentAction()
	if q == nil {
		return shares.Assignment{Kind: shares.Abandon}
	}
	out := shares.Assignment{TTL: uint32(q.GetAssignmentTimeToLive().GetSeconds())}
	b := q.GetRateLimitStrategy().GetTokenBucket()
	switch {
	case b != nil:
		out.MaxTokens, out.TokensPerFill, out.FillInterval = b.GetMaxTokens(), b.GetTokensPerFill().GetValue(), uint32(b.GetFillInterval().GetSeconds())
	case q.GetRateLimitStrategy().GetBlanketRule() == typepb.RateLimitStrategy_DENY_ALL:
		out.Kind = shares.DenyAll
	default:
		out.Kind = shares.AllowAll
	}
	return out
}

// Rate returns the rate that the client may use now.
func (c *Client) Rate() (rate float64) {
	c.locked(func(b *sharestest.Bucket, now shares.Micros) { rate = b.Rate(now) })
	return rate
}

// Admitted returns how many requests the client has admitted.
func (c *Client) Admitted() (n uint64) {
	c.locked(func(b *sharestest.Bucket, _ shares.Micros) { n = b.Admitted })
	return n
}

// Said returns how many messages have come, and why the last stream that ended did.
func (c *Client) Said() (messages int, ended error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.assigned, c.ended
}
