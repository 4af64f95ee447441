// Package rlqstest implements an RLQS client that decides on its own, for tests with real servers: the simulated Envoy of package
// sharestest, with a stream. Like Envoy's filter, it reports a bucket at the first request and then at each tick of a clock. The clock
// continues when the stream ends. At the next tick, the client connects to the next server and reports the usage since its last report.
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
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
	"github.com/ratelimitd/ratelimitd/internal/testkit/sharestest"
)

// EnvoyEvery is the interval of Envoy's ticks.
const EnvoyEvery = 5 * time.Second

const (
	usualEvery   = 1050 * time.Millisecond // elapsed seconds are rounded down, and must not be 0
	requestEvery = 20 * time.Millisecond   // interval of bunches of requests
)

// Config configures a client. The zero value is an Envoy with a short interval.
type Config struct {
	NoAssignment sharestest.Kind // decision without an assignment: AllowAll, Envoy's default, or DenyAll
	Every        time.Duration   // interval of ticks; 0 means slightly more than a second, for short tests
	Watch        func(Event)     // called for each event in order, and must not call the client; may be nil
}

// Event is an event of a client.
type Event struct {
	At         time.Time
	What       What
	Allowed    uint64 // of Decided and Reported
	Denied     uint64
	InForce    bool              // of Decided: an assignment was in force
	Assignment shares.Assignment // of Assigned
	Err        error             // of Ended
}

// What is the kind of an event.
type What uint8

// The kinds of events.
const (
	Decided  What = iota // requests that arrived together
	Reported             // sent, but may not arrive
	Assigned             // received, including Abandon
	Ended                // the stream or an attempt to open one failed
)

// Client is a client of one bucket. Its methods may be called concurrently.
type Client struct {
	config Config
	domain string
	name   string // identifies the client to servers
	id     *rlqspb.BucketId
	fresh  chan struct{} // signals that a request has created the bucket

	mu        sync.Mutex
	demand    float64 // requests per second
	bucket    sharestest.Bucket
	hasBucket bool      // the bucket exists
	reported  time.Time // time of the last report
	assigned  int       // number of messages
	ended     error     // error of the last stream
}

// New returns a client with one bucket, whose ID has one entry.
func New(domain, key, value string, config Config) *Client {
	if config.Every == 0 {
		config.Every = usualEvery
	}
	if config.Watch == nil {
		config.Watch = func(Event) {}
	}
	c := &Client{
		config: config, domain: domain, name: rand.Text(), id: &rlqspb.BucketId{Bucket: map[string]string{key: value}},
		fresh: make(chan struct{}, 1),
	}
	c.bucket.NoAssignment = config.NoAssignment
	return c
}

// Run makes requests at a rate per second, which Want changes, and sends reports until ctx ends. It connects to the first server, and to
// the next one whenever its stream ends.
func (c *Client) Run(ctx context.Context, demand float64, servers ...grpc.ClientConnInterface) {
	c.Want(demand)
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { c.request(ctx) })
	var ticks <-chan time.Time
	var open *stream
	for i := 0; ; {
		select {
		case <-c.fresh:
			if ticks == nil {
				t := time.NewTicker(c.config.Every)
				defer t.Stop()
				ticks = t.C
			}
		case <-ticks:
		case <-ctx.Done():
			return
		}
		if open == nil || open.over() {
			open = c.connect(ctx, &all, servers[i%len(servers)])
			i++
		}
		report := c.report()
		if open != nil { // otherwise the usage is lost
			_ = open.call.Send(report) // Recv returns the error
		}
	}
}

// Want sets the number of requests per second.
func (c *Client) Want(demand float64) { c.locked(func(time.Time, shares.Micros) { c.demand = demand }) }

func (c *Client) locked(do func(at time.Time, now shares.Micros)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := time.Now()
	do(at, shares.Micros(at.UnixMicro()))
}

func (c *Client) request(ctx context.Context) {
	tick := time.NewTicker(requestEvery)
	defer tick.Stop()
	last, rest := time.Now(), 0.0
	for ctx.Err() == nil {
		c.locked(func(at time.Time, now shares.Micros) {
			rest += c.demand * at.Sub(last).Seconds()
			last = at
			n := uint64(rest)
			rest -= float64(n)
			c.decide(at, now, n)
		})
		<-tick.C
	}
}

// decide decides n requests. The first one creates the bucket.
func (c *Client) decide(at time.Time, now shares.Micros, n uint64) {
	if n == 0 {
		return
	}
	e := Event{At: at, What: Decided, InForce: c.bucket.InForce(now)}
	e.Allowed = c.bucket.Request(now, n)
	e.Denied = n - e.Allowed
	c.config.Watch(e)
	if !c.hasBucket {
		c.hasBucket = true
		select {
		case c.fresh <- struct{}{}:
		default:
		}
	}
}

// report returns the next report.
func (c *Client) report() *rlqspb.RateLimitQuotaUsageReports {
	m := &rlqspb.RateLimitQuotaUsageReports{Domain: c.domain}
	c.locked(func(at time.Time, _ shares.Micros) {
		if !c.hasBucket {
			return
		}
		elapsed := time.Duration(0)
		if !c.reported.IsZero() {
			elapsed = at.Sub(c.reported).Truncate(time.Second)
		}
		c.reported = at
		u := c.bucket.Report()
		c.config.Watch(Event{At: at, What: Reported, Allowed: u.Allowed, Denied: u.Denied})
		m.BucketQuotaUsages = []*rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{{
			BucketId: c.id, TimeElapsed: durationpb.New(elapsed), NumRequestsAllowed: u.Allowed, NumRequestsDenied: u.Denied,
		}}
	})
	return m
}

// stream is a stream of a client.
type stream struct {
	call  rlqspb.RateLimitQuotaService_StreamRateLimitQuotasClient
	ended chan struct{} // closed when it has ended
}

func (s *stream) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// connect opens a stream and applies the server's messages until it ends. It returns nil on error.
func (c *Client) connect(ctx context.Context, all *sync.WaitGroup, server grpc.ClientConnInterface) *stream {
	ctx = metadata.AppendToOutgoingContext(ctx, "x-ratelimitd-client", c.name)
	call, err := rlqspb.NewRateLimitQuotaServiceClient(server).StreamRateLimitQuotas(ctx)
	if err != nil {
		c.end(err)
		return nil
	}
	s := &stream{call: call, ended: make(chan struct{})}
	all.Go(func() {
		defer close(s.ended)
		for {
			m, err := call.Recv()
			if err != nil {
				c.end(err)
				return
			}
			c.apply(m)
		}
	})
	return s
}

func (c *Client) end(err error) {
	c.locked(func(at time.Time, _ shares.Micros) {
		c.ended = err
		c.config.Watch(Event{At: at, What: Ended, Err: err})
	})
}

// apply applies a message.
func (c *Client) apply(m *rlqspb.RateLimitQuotaResponse) {
	c.locked(func(at time.Time, now shares.Micros) {
		c.assigned++
		for _, action := range m.GetBucketAction() {
			a := Assignment(action)
			c.bucket.Receive(now, a)
			if a.Kind == shares.Abandon {
				c.hasBucket, c.reported = false, time.Time{}
			}
			c.config.Watch(Event{At: at, What: Assigned, Assignment: a})
		}
	})
}

// Assignment returns the assignment in a message.
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
	c.locked(func(_ time.Time, now shares.Micros) { rate = c.bucket.Rate(now) })
	return rate
}

// Admitted returns the number of requests that the client has admitted.
func (c *Client) Admitted() (n uint64) {
	c.locked(func(time.Time, shares.Micros) { n = c.bucket.Admitted })
	return n
}

// Received returns the number of messages received, and the error of the last stream that ended.
func (c *Client) Received() (messages int, ended error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.assigned, c.ended
}
