package rlqs

import (
	"errors"
	"io"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/shares"
)

// Times of a stream.
const (
	silence   = 15 * time.Second      // without a report, which comes every 5 s, a stream ends; see shares.Config.Delivery
	idle      = 5 * time.Minute       // the same of a stream whose client has no buckets
	batch     = 20 * time.Millisecond // what buckets have to say within this time after a message is one message
	lastWords = time.Second           // for what is queued when a stream is to end; a client that does not read leaves it there
	perUsage  = time.Millisecond      // between two messages, for each usage of the first that is early: 1,000 a second
	usual     = time.Second           // a usage is early if its bucket is new, or was reported less than this before
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

	silent *time.Timer   // fires when too long nothing was reported
	wake   chan struct{} // there is something to send, or to end
	ending chan struct{} // closed once the stream is to end

	// These are guarded by the service's lock.
	why     error // the stream is to end
	queue   []*holder
	holders map[string]*holder // by the key of their buckets
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
	var age, grace <-chan time.Time
	if s.service.config.MaxAge > 0 {
		age = time.After(s.service.config.MaxAge)
	}
	defer s.silent.Stop()
	ending := s.ending
	for {
		select {
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-age:
			s.retire()
		case <-s.silent.C:
			return errSilent
		case <-ending:
			ending, grace = nil, time.After(lastWords)
		case <-grace:
			return errSlow
		}
	}
}

// retire ends the stream since it is old, after its assignments were renewed.
func (s *stream) retire() {
	s.service.mu.Lock()
	defer s.service.mu.Unlock()
	for _, h := range s.holders {
		h.bucket.send(h.bucket.shares.Renew(now(), s.id))
	}
	s.end(errAge)
}

// end ends the stream once what is queued has been sent.
func (s *stream) end(why error) {
	if s.why == nil {
		s.why = why
		close(s.ending)
		poke(s.wake)
	}
}

// read takes reports until the stream ends.
func (s *stream) read() error {
	for {
		r, err := s.call.Recv()
		if err != nil {
			return err
		}
		switch name := r.GetDomain(); {
		case s.domain == "" && (name == "" || len(name) > maxDomain):
			return errNoName
		case s.domain == "":
			s.service.name(s, name)
		case name != "" && name != s.domain:
			return errDomain
		}
		early, err := s.take(r.GetBucketQuotaUsages())
		if err != nil {
			return err
		}
		select { // so that a client has only so much of a processor
		case <-time.After(time.Duration(early) * perUsage):
		case <-s.call.Context().Done():
		}
	}
}

// take takes a report. It returns how many of its usages are early.
func (s *stream) take(usages []*rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage) (early int, err error) {
	v := s.service
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.drained || !v.streams[s] { // its last assignments are under way, or it has ended
		return 0, nil
	}
	var sum Requests
	defer func() { v.counts.add(s.domain, sum) }()
	at := time.Now()
	for _, u := range usages {
		soon, err := s.report(u, at, &sum)
		if err != nil {
			return 0, err
		}
		if soon {
			early++
		}
	}
	if len(s.holders) > 0 {
		s.silent.Reset(silence)
	} else {
		s.silent.Reset(idle)
	}
	return early, nil
}

// report takes the usage of one bucket at a time, and adds it to a sum. It reports whether the usage is early.
func (s *stream) report(u *rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage, at time.Time, sum *Requests) (early bool, err error) {
	var room [256]byte
	key, err := bucketKey(room[:0], s.domain, u.GetBucketId().GetBucket())
	if err != nil {
		return false, err
	}
	usage := shares.Usage{
		Elapsed: shares.Micros(max(0, u.GetTimeElapsed().AsDuration().Microseconds())),
		Allowed: min(u.GetNumRequestsAllowed(), maxReported), Denied: min(u.GetNumRequestsDenied(), maxReported),
	}
	h := s.holders[string(key)]
	if h == nil {
		if h = s.subscribe(string(key), u.GetBucketId(), usage); h == nil {
			return true, nil
		}
	}
	early = at.Sub(h.heard) < usual || h.heard.IsZero()
	h.heard = at
	sum.add(usage)
	h.bucket.report(h, usage)
	return early, nil
}

// subscribe makes the client a holder of the bucket of an id. It returns nil if no rule with rlqs has that, or there are too many.
func (s *stream) subscribe(key string, id *rlqspb.BucketId, u shares.Usage) *holder {
	v := s.service
	d := v.limiter.Rules().Domain([]byte(s.domain))
	if d == nil || d.OfBucket(id.GetBucket()) == nil {
		v.counts.Unknown++
		v.mistake("a client reports a bucket that no rule with rlqs has, so it is not limited: compare its id with the rules", s.domain, id)
		return nil
	}
	h := &holder{stream: s}
	if len(s.holders) < maxStreamBuckets {
		h.bucket = v.bucket(s.domain, key, d.OfBucket(id.GetBucket()), id.GetBucket())
	}
	if h.bucket == nil {
		v.counts.Unserved++
		v.mistake("a client reports too many buckets, so this one is not limited: use fewer values in their ids, or RLS", s.domain, id)
		if !u.Busy() { // else it would come back at once
			h.id = encodedID(id.GetBucket())
			h.tell(shares.Assignment{Kind: shares.Abandon})
		}
		return nil
	}
	h.id = h.bucket.id
	h.bucket.holders[h] = true
	s.holders[h.bucket.key] = h
	return h
}

// write sends what is queued until the stream ends.
func (s *stream) write() error {
	for {
		select {
		case <-s.wake:
		case <-s.call.Context().Done():
			return errDrained
		}
		m, why := s.next()
		if len(m.GetBucketAction()) > 0 {
			if err := s.call.Send(m); err != nil {
				return err
			}
		}
		if why != nil {
			return why
		}
		select {
		case <-time.After(batch):
		case <-s.call.Context().Done():
		}
	}
}

// next returns what is queued, and why the stream is to end after that, if it is.
func (s *stream) next() (m *rlqspb.RateLimitQuotaResponse, why error) {
	s.service.mu.Lock()
	defer s.service.mu.Unlock()
	m = &rlqspb.RateLimitQuotaResponse{BucketAction: make([]*rlqspb.RateLimitQuotaResponse_BucketAction, len(s.queue))}
	for i, h := range s.queue {
		m.BucketAction[i] = action(h.id, &h.said)
		h.queued = false
	}
	clear(s.queue)
	s.queue = s.queue[:0]
	s.service.counts.Assigned += uint64(len(m.GetBucketAction()))
	return m, s.why
}

// poke puts something into a channel that has room for one.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
