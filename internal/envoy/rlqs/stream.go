package rlqs

import (
	"errors"
	"io"
	"net"
	"slices"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
)

// Times of a stream.
const (
	silence   = 15 * time.Second      // maximum time without a report, which comes every 5 s; see shares.Config.Delivery
	idle      = 5 * time.Minute       // the same for a client without buckets
	batch     = 20 * time.Millisecond // after a message, actions are collected for this time
	lastWords = time.Second           // time to send the queue of a stream that is ending, unless the client does not read
	usual     = time.Second           // minimum interval of free reports of a bucket; earlier ones count as work
)

// Bounds on the queue for a client that reads slowly.
const (
	maxQueued   = 2 * maxStreamBuckets
	maxForgets  = 100      // in the queue, including one for an unserved bucket
	maxAnswer   = 24 << 10 // approximate size of a message in bytes: grpc allocates 1 MiB for one of more than 32 KiB
	actionBytes = 64       // size of an action without the ID of its bucket
)

// stream is one client.
type stream struct {
	service *Service
	call    rlqspb.RateLimitQuotaService_StreamRateLimitQuotasServer
	md      metadata.MD
	number  uint64 // sequence number
	from    *address
	conn    net.Addr // identifies the connection; nil if unknown
	bytes   int      // charged to its address, without holders
	domain  string   // set by the first message, like id
	id      string   // name of the client

	silent *time.Timer   // fires after too long without a report
	wake   chan struct{} // signals that there is something to send, or that the stream ends
	ending chan struct{} // closed when the stream is to end

	// Guarded by the service's lock.
	why     error // reason why the stream is to end; nil if it is not
	queue   []*holder
	holders map[string]*holder // by the keys of their buckets
	paid    time.Duration      // work that it may do without waiting
}

var (
	errSilent = status.Errorf(codes.Unavailable, "no report arrived for %v", silence)
	errAge    = status.Error(codes.Unavailable, "the stream is as old as GRPC_MAX_CONNECTION_AGE allows")
	errDomain = status.Error(codes.InvalidArgument, "the domain of a stream must not change: use one stream for each domain")
	errNoName = status.Errorf(codes.InvalidArgument, "the first message of a stream must have a domain of at most %d bytes", maxDomain)
	errSlow   = status.Error(codes.ResourceExhausted, "too much data is waiting to be sent, because the client does not read it")
)

// run serves the stream until it ends.
func (s *stream) run() error {
	ended := make(chan error, 2)
	go func() { ended <- s.read() }() // read and write end when the call does, after run returns
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

// retire renews the assignments and ends the stream, because it has reached the maximum age.
func (s *stream) retire() {
	s.lock()
	defer s.unlock()
	for _, h := range s.holders {
		h.bucket.send(h.bucket.shares.Renew(now(), s.id))
	}
	s.end(errAge)
}

// end ends the stream after its queue has been sent.
func (s *stream) end(why error) {
	if s.why == nil {
		s.why = why
		close(s.ending)
		poke(s.wake)
	}
}

// read processes reports until the stream ends.
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
		if err := s.take(r); err != nil {
			return err
		}
	}
}

// take processes a report.
func (s *stream) take(r *rlqspb.RateLimitQuotaUsageReports) error {
	v, at, bytes := s.service, time.Now(), reportBytes(r)
	s.lock()
	defer s.unlock()
	if !v.take(v.memory, s.from, bytes) {
		v.counts.Unserved++
		return errMemory
	}
	defer v.memory.Add(s.from, -bytes)
	var sum Requests
	defer func() { v.counts.add(s.domain, sum) }()
	if err := s.work(perMessage); err != nil {
		return err
	}
	for _, u := range r.GetBucketQuotaUsages() {
		if err := s.report(u, at, &sum); err != nil {
			return err
		}
	}
	s.silent.Reset(idle)
	if len(s.holders) > 0 {
		s.silent.Reset(silence)
	}
	return nil
}

// report processes the usage of one bucket, in a report received at a time, and adds it to sum.
func (s *stream) report(u *rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage, at time.Time, sum *Requests) error {
	var room [256]byte
	key, err := bucketKey(room[:0], s.domain, u.GetBucketId().GetBucket())
	if err != nil {
		return err
	}
	usage := shares.Usage{
		Elapsed: shares.Micros(max(0, u.GetTimeElapsed().AsDuration().Microseconds())),
		Allowed: min(u.GetNumRequestsAllowed(), maxReported), Denied: min(u.GetNumRequestsDenied(), maxReported),
	}
	h := s.holders[string(key)]
	if h == nil || at.Sub(h.lastReport) < usual {
		if time.Since(at) > longest { // the client reports it again
			s.service.counts.Unserved++
			return nil
		}
		cost := perUsage
		if h == nil && s.service.buckets[string(key)] == nil {
			cost = perBucket
		}
		if err := s.work(cost); err != nil {
			return err
		}
		if h = s.holders[string(key)]; h == nil {
			h = s.subscribe(string(key), u.GetBucketId(), usage)
		}
		if h == nil {
			return nil
		}
	}
	h.lastReport = at
	sum.add(usage)
	h.bucket.report(h, usage)
	return nil
}

// subscribe makes the client a holder of the bucket of an ID. It returns nil if no rule with rlqs has the ID, or if there is no room.
func (s *stream) subscribe(key string, id *rlqspb.BucketId, u shares.Usage) *holder {
	v := s.service
	d := v.limiter.Rules().Domain([]byte(s.domain))
	if d == nil || d.OfBucket(id.GetBucket()) == nil {
		v.counts.Unknown++
		v.mistake("a client reports a bucket that matches no rule with rlqs, so the bucket is not limited: compare its ID with the rules", s.domain, id)
		return nil
	}
	h := &holder{stream: s}
	if len(s.holders) < maxStreamBuckets && v.take(v.memory, s.from, holderBytes) {
		if h.bucket = v.bucket(s.from, s.domain, key, d.OfBucket(id.GetBucket()), id.GetBucket()); h.bucket == nil {
			v.memory.Add(s.from, -holderBytes)
		}
	}
	if h.bucket == nil {
		v.counts.Unserved++
		v.mistake("a client reports more buckets than fit, so this bucket is not limited: use fewer values in bucket IDs, use RLS, or raise RLQS_MEMORY_IN_BYTES", s.domain, id)
		if !u.Busy() && len(s.queue) < maxForgets { // otherwise the client would report it again immediately
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

// write sends the queue until the stream ends.
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
		time.Sleep(batch)
	}
}

// next returns the next message. If the stream must end after it, why is the reason.
func (s *stream) next() (m *rlqspb.RateLimitQuotaResponse, why error) {
	s.lock()
	defer s.unlock()
	m = &rlqspb.RateLimitQuotaResponse{BucketAction: make([]*rlqspb.RateLimitQuotaResponse_BucketAction, 0, len(s.queue))}
	for bytes := 0; len(m.BucketAction) < len(s.queue) && bytes < maxAnswer; {
		h := s.queue[len(m.BucketAction)]
		m.BucketAction = append(m.BucketAction, action(h.id, &h.latest))
		h.queued = false
		bytes += actionBytes + len(h.id.ProtoReflect().GetUnknown())
	}
	s.service.counts.Assigned += uint64(len(m.BucketAction))
	s.queue = slices.Delete(s.queue, 0, len(m.BucketAction))
	if len(s.queue) > 0 {
		poke(s.wake)
		return m, nil
	}
	return m, s.why
}

// poke signals a channel with a buffer of one.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
