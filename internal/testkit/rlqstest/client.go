// Package rlqstest is a client that decides by itself as Envoy does, for tests with real servers: the fake Envoy of package sharestest,
// with a stream. As Envoy's filter does, it reports a bucket with its first request, and then at each tick of a clock. Ticks go on
// when its stream ends; at the next one it connects to the next server, and reports what it has counted since the last one.
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

// EnvoyEvery is the time between two ticks of Envoy.
const EnvoyEvery = 5 * time.Second

const (
	usualEvery   = 1050 * time.Millisecond // the seconds that have elapsed are rounded down, and must not be 0
	requestEvery = 20 * time.Millisecond   // requests come in bunches
)

// Config says what kind of client it is. Its zero value is an Envoy that is in a hurry.
type Config struct {
	NoAssignment sharestest.Kind // what it does without an assignment: AllowAll, as Envoy does unless it is told otherwise, or DenyAll
	Every        time.Duration   // between two ticks; 0 means a little more than a second, so that tests are short
	Watch        func(Event)     // is called with all that happens, in order, and must not call the client; may be nil
}

// Event is something that happened to a client.
type Event struct {
	At      time.Time
	What    What
	Allowed uint64 // of Decided and Reported
	Denied  uint64
	InForce bool              // of Decided: an assignment was
	Told    shares.Assignment // of Assigned
	Err     error             // of Ended
}

// What is the kind of an event.
type What uint8

// The kinds of events.
const (
	Decided  What = iota // some requests that came at one time
	Reported             // whether that arrives or not
	Assigned             // or abandoned
	Ended                // its stream, or an attempt to open one
)

// Client is a client of one bucket. Its methods may be called concurrently.
type Client struct {
	config Config
	domain string
	name   string // by which a server knows it again
	id     *rlqspb.BucketId
	fresh  chan struct{} // a request has made the bucket

	mu       sync.Mutex
	demand   float64 // requests a second
	bucket   sharestest.Bucket
	known    bool      // it has the bucket
	reported time.Time // the last report of the bucket
	assigned int       // messages
	ended    error     // why the last stream ended
}

// New returns a client of a bucket, whose id is one entry.
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

// Run makes so many requests a second, until Want says another number, and reports, until ctx ends. It connects to the first server, and
// when its stream ends to the next one.
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
		if open != nil { // else what it counted is lost
			_ = open.call.Send(report) // Recv says what is wrong
		}
	}
}

// Want makes c make so many requests a second from now on.
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

// decide decides so many requests. The first one makes the bucket.
func (c *Client) decide(at time.Time, now shares.Micros, n uint64) {
	if n == 0 {
		return
	}
	e := Event{At: at, What: Decided, InForce: c.bucket.InForce(now)}
	e.Allowed = c.bucket.Request(now, n)
	e.Denied = n - e.Allowed
	c.config.Watch(e)
	if !c.known {
		c.known = true
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
		if !c.known {
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
	ended chan struct{} // closed when it has
}

func (s *stream) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// connect opens a stream, and does what the server says until it ends. It returns nil if it cannot.
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
			c.obey(m)
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

// obey does what a message says.
func (c *Client) obey(m *rlqspb.RateLimitQuotaResponse) {
	c.locked(func(at time.Time, now shares.Micros) {
		c.assigned++
		for _, action := range m.GetBucketAction() {
			a := Assignment(action)
			c.bucket.Receive(now, a)
			if a.Kind == shares.Abandon {
				c.known, c.reported = false, time.Time{}
			}
			c.config.Watch(Event{At: at, What: Assigned, Told: a})
		}
	})
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
	c.locked(func(_ time.Time, now shares.Micros) { rate = c.bucket.Rate(now) })
	return rate
}

// Admitted returns how many requests the client has admitted.
func (c *Client) Admitted() (n uint64) {
	c.locked(func(time.Time, shares.Micros) { n = c.bucket.Admitted })
	return n
}

// Said returns how many messages have come, and why the last stream that ended did.
func (c *Client) Said() (messages int, ended error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.assigned, c.ended
}
