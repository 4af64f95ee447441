package rlqs

import (
	"context"
	"maps"
	"net"
	"sync"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
)

// Clients' memory is charged to their addresses, by these estimates in bytes. TestEstimates compares them with the heap.
const (
	usualMemory = 256 << 20
	streamBytes = 64 << 10 // goroutines and grpc take 20 KiB; the rest is for messages that the client does not read
	holderBytes = 800
	bucketBytes = 8500 // with a goroutine; besides its id
	usageBytes  = 500  // of a report that is being taken; besides its encoded size
)

// keep is how long the holders of a stream that has ended are charged: package shares keeps them until their assignments have run out.
const keep = 28 * time.Second

// Costs of work. Each address may cause a second of work in a second. The usages of a usual report are free.
const (
	perMessage = time.Millisecond / 10
	perUsage   = time.Millisecond / 50  // of a bucket that the stream does not hold, or earlier than usual
	perBucket  = time.Millisecond       // that does not exist: it is new, or no rule has it
	atOnce     = 250 * time.Millisecond // of work after a pause
	longest    = 2 * time.Second        // that a report waits; what is left of it is reported again
)

// maxAddresses is how many addresses are remembered, besides those that have something.
const maxAddresses = 10_000

// address is what clients of one network have in common, see [throttle.Network]. Clients without an address, such as those on a unix socket,
// have one address.
type address struct {
	turn    sync.Mutex // of its streams, to wait for the lock of the service
	worked  time.Time  // the end of its work, if each piece takes what it costs
	streams map[*stream]bool
	buckets map[*bucket]bool // that are charged to it
}

// pool is what addresses share.
type pool = throttle.Pool[*address]

// address returns the address of a call, and what identifies its connection, or nil.
func (s *Service) address(call context.Context) (a *address, conn net.Addr) {
	name := ""
	if p, ok := peer.FromContext(call); ok {
		name, conn = throttle.Network(p.Addr.String()), p.Addr // a pointer that no other connection has
	}
	if s.addresses[name] == nil {
		if len(s.addresses) >= maxAddresses {
			maps.DeleteFunc(s.addresses, func(_ string, a *address) bool { return s.memory.Taken(a) == 0 })
		}
		s.addresses[name] = &address{streams: map[*stream]bool{}, buckets: map[*bucket]bool{}}
	}
	return s.addresses[name], conn
}

// take takes n of a pool for an address, if there is room, or another address gives way.
func (s *Service) take(p *pool, a *address, n int) bool {
	return p.Take(a, n, func(worst *address) bool { return s.evict(p, worst) })
}

// evict frees part of a pool: it drops a bucket of an address, or ends a stream. It returns false if there is none. The holders of a bucket
// report it again.
func (s *Service) evict(p *pool, a *address) bool {
	s.counts.Unserved++
	s.mistake("clients of one address have more than GRPC_ADDRESS_SHARE of RLQS_MEMORY_IN_BYTES or of the buckets of a domain, so they lose some to others", "", nil)
	for b := range a.buckets {
		if p == s.memory || p == s.domains[b.domain] {
			for h := range b.holders {
				h.part()
			}
			b.shares = shares.New(shares.Config{}, now()) // without holders it ends
			s.forget(b)
			return true
		}
	}
	for st := range a.streams {
		s.remove(st, errMemory)
		return true
	}
	return false
}

// bytes returns the estimate for a bucket without holders.
func (b *bucket) bytes() int {
	return bucketBytes + len(b.key) + 2*len(b.id.ProtoReflect().GetUnknown())
}

// reportBytes returns the estimate for a report.
func reportBytes(r *rlqspb.RateLimitQuotaUsageReports) int {
	return usageBytes*len(r.GetBucketQuotaUsages()) + proto.Size(r)
}

// part removes h from its bucket and from its stream, which goes on.
func (h *holder) part() {
	delete(h.bucket.holders, h)
	delete(h.stream.holders, h.bucket.key)
	h.stream.service.memory.Add(h.stream.from, -holderBytes)
}

// lock takes the lock of the service. One stream of each address waits for it at a time, or many would keep those of others waiting.
func (s *stream) lock() {
	s.from.turn.Lock()
	s.service.mu.Lock()
}

func (s *stream) unlock() {
	s.service.mu.Unlock()
	s.from.turn.Unlock()
}

// wait releases the lock until c fires or the call ends.
func (s *stream) wait(c <-chan time.Time) {
	s.unlock()
	defer s.lock()
	select {
	case <-c:
	case <-s.call.Context().Done():
	}
}

// work waits until the address may cause work that costs so much. It returns an error if the stream has ended.
func (s *stream) work(cost time.Duration) error {
	if s.paid -= cost; s.paid < 0 {
		s.paid += perBucket
		if idle := time.Now().Add(-atOnce); s.from.worked.Before(idle) {
			s.from.worked = idle
		}
		s.from.worked = s.from.worked.Add(perBucket)
		s.wait(time.After(time.Until(s.from.worked)))
		if err := s.call.Context().Err(); err != nil {
			s.from.worked = s.from.worked.Add(-perBucket)
			return err
		}
	}
	if s.service.drained || !s.service.streams[s] {
		s.wait(nil) // its last assignments are being sent
		return errDrained
	}
	return nil
}
