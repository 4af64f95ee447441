// Package rlqs implements Envoy's rate limit quota service (RLQS). Envoys report their usage of a limit, and receive shares of it, with
// which they decide on their own.
//
// A stream is a client. Each bucket reported by clients is one limit of one descriptor (bucket.go). Package shares divides it; the hits
// come from leases of the counter that RLS also uses. A bucket has a goroutine, which asks the store once a second and queues assignments
// for the clients at their streams (stream.go). One lock guards all state. Slow operations run without it: decoding, encoding, and
// waiting for the store.
//
// Clients need no credentials. Their memory and the work that they cause are charged to their addresses (budget.go). An address that
// exceeds its share gives way to others.
//
// Each replica divides its own part of the limit among its own streams. Replicas agree on their parts through the store, where each
// writes a row per bucket once a second. With counters in memory there is only one replica, and there are no rows.
//
// This package is optional: the core works without it.
package rlqs

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Bounds on buckets. A connection has at most 16 streams of all services except RLS; see package netlimit.
const (
	maxStreamBuckets = 1000 // a report takes about 50 bytes for each, every 5 s
	maxDomainBuckets = 10_000
	maxFollowed      = 1000 // without clients, created for RLS callers
)

// logEvery is the interval of log messages about each kind of client mistake.
const logEvery = time.Minute

// Limiter is the part of the limiter that the service uses.
type Limiter interface {
	Rules() *descriptors.Set
	Lease(ctx context.Context, domain string, entries []descriptors.Entry, ask limiter.Lease) (limiter.Leased, error)
	EndLease(counter backend.Key)
	OnUnleased(f func(domain string, entries []descriptors.Entry))
}

// Rows is the storage through which replicas agree on their parts, with a table for each limit. It is safe for concurrent use.
type Rows interface {
	// Agree writes the row of this replica to the table of a limit and returns the table, atomically. It sets Until.
	Agree(ctx context.Context, limit string, mine *shares.Row) ([]shares.Row, error)
}

// Config configures a Service.
type Config struct {
	Shared bool          // other replicas use the same counters
	Rows   Rows          // nil if replicas cannot agree on their parts
	MaxAge time.Duration // maximum age of a stream; 0 means no limit. GRPC_MAX_CONNECTION_AGE does not end open calls
	Log    *slog.Logger  // nil discards
	// Decided is called with clients' own decisions on a descriptor that matched a rule. It may be nil.
	Decided func(domain, rule string, entries []descriptors.Entry, allowed, denied uint64)

	Memory       int     // estimated maximum memory of all clients in bytes; 0 means 256 MiB
	AddressShare float64 // part of Memory, and of the buckets of a domain, beyond which an address gives way to others; 0 means no such part
}

// Service implements RLQS. It is safe for concurrent use.
type Service struct {
	rlqspb.UnimplementedRateLimitQuotaServiceServer

	limiter Limiter
	config  Config
	replica string // name of this process in rows
	lines   *throttle.Log
	stop    context.CancelFunc
	stopped context.Context //nolint:containedctx // cancels the buckets' calls at the end of the service

	mu        sync.Mutex       // guards the following fields, and the mutable fields of streams and buckets
	streams   map[*stream]bool // open streams
	clients   map[client]*stream
	buckets   map[string]*bucket
	addresses map[string]*address
	own       *address         // address of this replica
	memory    *pool            // in bytes
	domains   map[string]*pool // buckets by domain
	drained   bool
	started   uint64         // number of streams started
	open      sync.WaitGroup // running buckets and streams
	counts    Counts
}

// Counts are totals since the start of the process.
type Counts struct {
	Assigned uint64              // assignments sent
	Unknown  uint64              // reports of buckets without a rule
	Unserved uint64              // streams and buckets that exceeded a bound or gave way to others
	Requests map[string]Requests // requests decided by clients, by domain
}

// Requests are requests decided by clients, according to their reports.
type Requests struct{ Allowed, Denied uint64 }

func (r *Requests) add(u shares.Usage) { r.Allowed, r.Denied = r.Allowed+u.Allowed, r.Denied+u.Denied }

func (c *Counts) add(domain string, sum Requests) {
	if sum != (Requests{}) {
		n := c.Requests[domain]
		c.Requests[domain] = Requests{n.Allowed + sum.Allowed, n.Denied + sum.Denied}
	}
}

// New returns a Service.
func New(l Limiter, c Config) *Service {
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	s := &Service{
		limiter: l, config: c, replica: rand.Text()[:12], lines: throttle.Every(logEvery),
		streams: map[*stream]bool{}, clients: map[client]*stream{}, buckets: map[string]*bucket{}, addresses: map[string]*address{},
		own:    &address{streams: map[*stream]bool{}, buckets: map[*bucket]bool{}},
		memory: throttle.NewPool[*address](cmp.Or(c.Memory, usualMemory), c.AddressShare), domains: map[string]*pool{},
		counts: Counts{Requests: map[string]Requests{}},
	}
	s.stopped, s.stop = context.WithCancel(context.Background())
	if c.Rows != nil {
		l.OnUnleased(s.unleased)
	}
	return s
}

// unleased starts to follow a descriptor that RLS callers have asked for.
func (s *Service) unleased(domain string, entries []descriptors.Entry) {
	id := map[string]string{}
	for _, e := range entries {
		id[string(e.Key)] = string(e.Value)
	}
	domain = strings.Clone(domain)
	go s.follow(domain, id)
}

// follow creates a bucket for an ID that no client of this replica has reported, so that replicas that divide it know the demand of this
// replica's RLS callers.
func (s *Service) follow(domain string, id map[string]string) {
	key, err := bucketKey(nil, domain, id)
	rules := s.limiter.Rules()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || rules == nil || s.drained || len(s.own.buckets) >= maxFollowed || s.buckets[string(key)] != nil {
		return
	}
	if d := rules.Domain([]byte(domain)); d != nil && d.OfBucket(id) != nil {
		if b := s.bucket(s.own, domain, string(key), d.OfBucket(id), id); b != nil {
			b.called = time.Now()
			b.shares.Follow(now())
		}
	}
}

// Register registers the service. Registration is possible only before the server starts, possibly before the rules are loaded. So the
// service is always registered, and returns Unimplemented unless a rule has rlqs.
func (s *Service) Register(r grpc.ServiceRegistrar) { rlqspb.RegisterRateLimitQuotaServiceServer(r, s) }

// divides reports whether any rule has rlqs.
func (s *Service) divides() bool {
	rules := s.limiter.Rules()
	if rules == nil {
		return false
	}
	for d := range rules.Domains() {
		if d.Divides() {
			return true
		}
	}
	return false
}

var (
	errNoRule  = status.Error(codes.Unimplemented, "no rule has the key rlqs, so no limit is divided: docs/rlqs.md")
	errDrained = status.Error(codes.Unavailable, "this server is about to stop")
	errMemory  = status.Error(codes.ResourceExhausted, "RLQS_MEMORY_IN_BYTES is used up, or other addresses need what this address uses beyond GRPC_ADDRESS_SHARE")
	errNewer   = status.Error(codes.Aborted, "this connection has a newer stream of the same domain and client name")
)

// StreamRateLimitQuotas implements the service.
func (s *Service) StreamRateLimitQuotas(call rlqspb.RateLimitQuotaService_StreamRateLimitQuotasServer) error {
	if !s.divides() {
		return errNoRule
	}
	md, _ := metadata.FromIncomingContext(call.Context())
	st, err := s.enter(call, md)
	if err != nil {
		return err
	}
	defer s.leave(st)
	return st.run()
}

// client identifies a stream. A client has one stream per domain.
type client struct{ domain, name string }

// enter adds a stream.
func (s *Service) enter(call rlqspb.RateLimitQuotaService_StreamRateLimitQuotasServer, md metadata.MD) (*stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drained {
		return nil, errDrained
	}
	st := &stream{
		service: s, call: call, md: md, number: s.started + 1, silent: time.NewTimer(silence),
		wake: make(chan struct{}, 1), ending: make(chan struct{}), holders: map[string]*holder{}, bytes: streamBytes,
	}
	for key, values := range md {
		st.bytes += len(key) + len(strings.Join(values, ""))
	}
	st.from, st.conn = s.address(call.Context())
	if !s.take(s.memory, st.from, st.bytes) {
		s.counts.Unserved++
		return nil, errMemory
	}
	s.started++
	s.streams[st], st.from.streams[st] = true, true
	s.open.Add(1)
	return st, nil
}

// name sets the domain and the client name of a stream. If another stream of the domain on the same connection has the name, the client
// has replaced that stream, so name ends it. Clients that share a connection have different names, or none.
func (s *Service) name(st *stream, domain string) {
	st.lock()
	defer st.unlock()
	st.domain = domain
	st.id = clientName(st.md, st.number, func(name string) bool {
		older := s.clients[client{domain, name}]
		if older != nil && older.conn == st.conn && st.conn != nil {
			s.remove(older, errNewer)
			return false
		}
		return older != nil
	})
	if s.streams[st] { // it has not ended in the meantime
		s.clients[client{domain, st.id}] = st
	}
}

// leave removes a stream that has ended.
func (s *Service) leave(st *stream) {
	st.lock()
	defer st.unlock()
	s.remove(st, errDrained)
	s.open.Done()
}

// remove ends and removes a stream. It does nothing if the stream was already removed.
func (s *Service) remove(st *stream, why error) {
	if !s.streams[st] {
		return
	}
	if kept, from := len(st.holders)*holderBytes, st.from; kept > 0 {
		time.AfterFunc(keep, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.memory.Add(from, -kept)
		})
	}
	for _, h := range st.holders {
		h.bucket.leave(h)
		h.stream = nil // do not retain the stream
	}
	st.holders = nil
	delete(s.streams, st)
	delete(st.from.streams, st)
	delete(s.clients, client{st.domain, st.id})
	s.memory.Add(st.from, -st.bytes)
	st.end(why)
}

// bucket returns the bucket of a key. If there is none, it creates one and charges it to payer; it returns nil if there is no room.
func (s *Service) bucket(payer *address, domain, key string, entries []descriptors.Entry, id map[string]string) *bucket {
	if b := s.buckets[key]; b != nil {
		return b
	}
	b := &bucket{
		service: s, domain: domain, key: key, id: encodedID(id), entries: entries, payer: payer,
		wake: make(chan struct{}, 1), holders: map[*holder]bool{}, shares: shares.New(shares.Config{}, now()),
	}
	if !s.take(s.memory, b.payer, b.bytes()) {
		return nil
	}
	if s.domains[b.domain] == nil {
		s.domains[b.domain] = throttle.NewPool[*address](maxDomainBuckets, s.config.AddressShare)
	}
	if !s.take(s.domains[b.domain], b.payer, 1) {
		s.memory.Add(b.payer, -b.bytes())
		return nil
	}
	s.buckets[key], b.payer.buckets[b] = b, true
	s.open.Go(b.run)
	return b
}

// forget removes a bucket. It does nothing if the bucket was already removed.
func (s *Service) forget(b *bucket) {
	if s.buckets[b.key] != b {
		return
	}
	delete(s.buckets, b.key)
	delete(b.payer.buckets, b)
	s.memory.Add(b.payer, -b.bytes())
	s.domains[b.domain].Add(b.payer, -1)
}

// mistake logs a client's mistake about a bucket.
func (s *Service) mistake(what, domain string, id *rlqspb.BucketId) {
	if omitted, ok := s.lines.Allow(what); ok {
		s.config.Log.Warn(what, "domain", domain, "bucket", id.String(), "omitted", omitted) //nolint:sloglint // each caller's is constant
	}
}

// Counts returns the counts, and the current numbers of streams and buckets.
func (s *Service) Counts() (c Counts, streams, buckets int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c = s.counts
	c.Requests = maps.Clone(c.Requests)
	return c, len(s.streams), len(s.buckets)
}

// BucketStatus describes a bucket.
type BucketStatus struct {
	Domain  string
	Entries []descriptors.Entry
	Shares  shares.Status

	// Set only if the limit is divided.
	Strict       bool
	Rate         float64
	Assigned     float64         // hits per second, to all holders
	Holders      []shares.Holder // a limited number of them
	TotalHolders int
}

// Status returns the status of the buckets that satisfy want, sorted by domain and entries: at most most buckets, with at most most
// holders each.
func (s *Service) Status(want func(domain string, entries []descriptors.Entry) bool, most int) (out []BucketStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*bucket
	for _, b := range s.buckets {
		if want(b.domain, b.entries) {
			all = append(all, b)
		}
	}
	slices.SortFunc(all, func(a, b *bucket) int { return strings.Compare(a.key, b.key) })
	for _, b := range all[:min(most, len(all))] {
		out = append(out, b.status(most))
	}
	return out
}

// Drain renews all assignments once, so that clients have time to connect elsewhere, and ends all streams. New streams fail.
func (s *Service) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drained = true
	for _, b := range s.buckets {
		b.send(b.shares.Close(now()))
	}
	for st := range s.streams {
		st.end(errDrained)
	}
	s.stop()
}

// Wait waits until all streams and buckets have ended, about a second after Drain.
func (s *Service) Wait() { s.open.Wait() }
