package rlqs

import (
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/shares"
)

// Times of a stream.
const (
	silence = 15 * time.Second      // without a report, which comes every 5 s, a stream is ended; see shares.Config.Delivery
	batch   = 20 * time.Millisecond // what buckets have to say within this time after a message is one message
)

// maxQueued bounds what waits to be sent to a client that reads slowly: its buckets, and as many that it is to forget.
const maxQueued = 2 * maxStreamBuckets

// stream is one client.
type stream struct {
	service *Service
	call    rlqspb.RateLimitQuotaService_StreamRateLimitQuotasServer
	md      metadata.MD
	number  uint64 // of all streams
	domain  string // of the first message, which sets both
	id      string // the client's name

	wake    chan struct{} // there is something to send
	heard   chan struct{} // a message has come
	ending  chan struct{} // closed to end the stream once all is sent
	endOnce sync.Once

	mu      sync.Mutex
	left    bool
	queue   []*rlqspb.RateLimitQuotaResponse_BucketAction
	at      map[string]int // the index of a bucket's action in queue
	buckets map[string]*bucket
}

func newStream(s *Service, call rlqspb.RateLimitQuotaService_StreamRateLimitQuotasServer, md metadata.MD, number uint64) *stream {
	return &stream{
		service: s, call: call, md: md, number: number,
		wake: make(chan struct{}, 1), heard: make(chan struct{}, 1), ending: make(chan struct{}),
		at: map[string]int{}, buckets: map[string]*bucket{},
	}
}

var (
	errSilent = status.Errorf(codes.Unavailable, "no report came for %v", silence)
	errAge    = status.Error(codes.Unavailable, "the stream is as old as GRPC_MAX_CONNECTION_AGE allows")
	errDomain = status.Error(codes.InvalidArgument, "the domain of a stream must not change: want a stream for each domain")
	errNoName = status.Errorf(codes.InvalidArgument, "the first message of a stream must have a domain of at most %d bytes", maxDomain)
	errSlow   = status.Error(codes.ResourceExhausted, "too much waits to be sent, because the client does not read")
)

// run serves the stream until it ends.
func (s *stream) run() error {
	ended := make(chan error, 2)
	go func() { ended <- s.read() }() // both end when this returns, since the call does
	go func() { ended <- s.write() }()
	var age <-chan time.Time
	if s.service.config.MaxAge > 0 {
		age = time.After(s.service.config.MaxAge)
	}
	silent, spoken := time.NewTimer(silence), false
	defer silent.Stop()
	for {
		select {
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-s.call.Context().Done():
			return errDrained
		case <-age:
			return errAge
		case <-s.heard:
			spoken = true
			silent.Reset(silence)
		case <-silent.C:
			if !spoken || s.holds() {
				return errSilent
			}
		}
	}
}

// end ends the stream once all is sent that waits now.
func (s *stream) end() { s.endOnce.Do(func() { close(s.ending) }) }

// read takes reports until the stream ends.
func (s *stream) read() error {
	for {
		r, err := s.call.Recv()
		if err != nil {
			return err
		}
		poke(s.heard)
		switch name := r.GetDomain(); {
		case s.domain == "" && (name == "" || len(name) > maxDomain):
			return errNoName
		case s.domain == "":
			s.service.name(s, name)
		case name != "" && name != s.domain:
			return errDomain
		}
		var sum Requests
		for _, u := range r.GetBucketQuotaUsages() {
			if err = s.report(u, &sum); err != nil {
				break
			}
		}
		s.service.decided(s.domain, sum)
		if err != nil {
			return err
		}
	}
}

// report takes the usage of one bucket, and adds it to a sum.
func (s *stream) report(u *rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage, sum *Requests) error {
	id := u.GetBucketId()
	key, err := bucketKey(s.domain, id.GetBucket())
	if err != nil {
		return err
	}
	usage := shares.Usage{
		Elapsed: shares.Micros(max(0, u.GetTimeElapsed().AsDuration().Microseconds())),
		Allowed: min(u.GetNumRequestsAllowed(), maxReported), Denied: min(u.GetNumRequestsDenied(), maxReported),
	}
	for {
		b, err := s.find(key, id)
		if err != nil || b == nil {
			return err
		}
		if b.report(s, usage) {
			sum.Allowed += usage.Allowed
			sum.Denied += usage.Denied
			return nil
		}
		s.drop(b) // it has ended
	}
}

// find returns the bucket of an id, or nil if there is none: no rule with rlqs has it, or there are too many.
func (s *stream) find(key string, id *rlqspb.BucketId) (*bucket, error) {
	s.mu.Lock()
	b, n := s.buckets[key], len(s.buckets)
	s.mu.Unlock()
	if b != nil {
		return b, nil
	}
	service := s.service
	d := service.limiter.Rules().Domain([]byte(s.domain))
	if d == nil || d.OfBucket(id.GetBucket()) == nil {
		service.count(func(c *Counts) { c.Unknown++ })
		service.mistake("a client reports a bucket that no rule with rlqs has, so it is not limited: compare its id with the rules",
			"domain", s.domain, "bucket", id.String())
		return nil, nil
	}
	id = &rlqspb.BucketId{Bucket: id.GetBucket()} // which is kept, without fields that nothing has checked
	if n < maxStreamBuckets {
		b = service.bucket(s.domain, key, id, d.OfBucket(id.GetBucket()))
	}
	if b == nil {
		service.mistake("a client reports too many buckets, so this one is not limited: use fewer values in their ids, or RLS",
			"domain", s.domain, "bucket", id.String())
		return nil, s.queueAction(key, abandon(id))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buckets[key] = b
	return b, nil
}

// holds reports whether the client has buckets, of which it must report.
func (s *stream) holds() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.buckets) > 0
}

// keep makes sure that a bucket is told when the stream ends. It returns false if it has.
func (s *stream) keep(b *bucket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.left {
		s.buckets[b.key] = b
	}
	return !s.left
}

// drop forgets a bucket.
func (s *stream) drop(b *bucket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buckets[b.key] == b {
		delete(s.buckets, b.key)
	}
}

// hasLeft reports whether the stream has ended.
func (s *stream) hasLeft() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left
}

// leave returns the buckets of a stream that has ended.
func (s *stream) leave() []*bucket {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = true
	return slices.Collect(maps.Values(s.buckets))
}

// queueAction queues an action, which takes the place of an earlier one for the same bucket.
func (s *stream) queueAction(key string, a *rlqspb.RateLimitQuotaResponse_BucketAction) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := s.at[key]; ok {
		s.queue[i] = a
		return nil
	}
	if len(s.queue) >= maxQueued {
		return errSlow
	}
	s.at[key] = len(s.queue)
	s.queue = append(s.queue, a)
	poke(s.wake)
	return nil
}

// write sends what is queued until the stream ends.
func (s *stream) write() error {
	for {
		var last bool
		select {
		case <-s.wake:
		case <-s.ending:
			last = true
		case <-s.call.Context().Done():
			return errDrained
		}
		if err := s.send(); err != nil || last {
			return errors.Join(err, lastError(last))
		}
		time.Sleep(batch)
	}
}

func lastError(last bool) error {
	if last {
		return errDrained
	}
	return nil
}

// send sends what is queued, in one message.
func (s *stream) send() error {
	s.mu.Lock()
	queue := s.queue
	s.queue = nil
	clear(s.at)
	s.mu.Unlock()
	if len(queue) == 0 {
		return nil
	}
	s.service.count(func(c *Counts) { c.Assigned += uint64(len(queue)) })
	return s.call.Send(&rlqspb.RateLimitQuotaResponse{BucketAction: queue})
}

// poke puts something into a channel that has room for one.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
