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

// Memory estimates in bytes. Clients' memory is charged to their addresses. TestEstimates compares the estimates with the heap.
const (
	usualMemory = 256 << 20
	streamBytes = 64 << 10 // goroutines and grpc take 20 KiB; the rest is for messages that the client does not read
	holderBytes = 800
	bucketBytes = 8500 // including a goroutine, without its ID
	usageBytes  = 500  // of a report in progress, without its encoded size
)

// keep is the time for which the holders of an ended stream are charged: package shares keeps them until their assignments have expired.
const keep = 28 * time.Second

// Costs of work. Each address may cause a second of work per second. The usages of a normal report are free.
const (
	perMessage = time.Millisecond / 10
	perUsage   = time.Millisecond / 50  // for a bucket that the stream does not hold, or reported earlier than usual
	perBucket  = time.Millisecond       // for a bucket that does not exist: it is new, or no rule has it
	atOnce     = 250 * time.Millisecond // maximum work without waiting after a pause
	longest    = 2 * time.Second        // maximum wait of a report; the rest of it is dropped, because the client reports it again
)

// maxAddresses is the maximum number of remembered addresses, in addition to those in use.
const maxAddresses = 10_000

// address represents the clients of one network; see [throttle.Network]. Clients without an address, such as those on a unix socket,
// share one.
type address struct {
	turn    sync.Mutex // held by one of its streams while that waits for the service's lock
	worked  time.Time  // end of its work if each unit takes its cost
	streams map[*stream]bool
	buckets map[*bucket]bool // charged to this address
}

// pool is a resource shared by addresses.
type pool = throttle.Pool[*address]

// address returns the address of a call and an identity of its connection, which may be nil.
func (s *Service) address(call context.Context) (a *address, conn net.Addr) {
	name := ""
	if p, ok := peer.FromContext(call); ok {
		name, conn = throttle.Network(p.Addr.String()), p.Addr // a pointer unique to the connection
	}
	if s.addresses[name] == nil {
		if len(s.addresses) >= maxAddresses {
			maps.DeleteFunc(s.addresses, func(_ string, a *address) bool { return s.memory.Taken(a) == 0 })
		}
		s.addresses[name] = &address{streams: map[*stream]bool{}, buckets: map[*bucket]bool{}}
	}
	return s.addresses[name], conn
}

// take takes n from a pool for an address. It evicts from other addresses if necessary, and returns false if there is no room.
func (s *Service) take(p *pool, a *address, n int) bool {
	return p.Take(a, n, func(worst *address) bool { return s.evict(p, worst) })
}

// evict frees part of a pool: it drops a bucket of an address, or ends a stream. It returns false if the address has none. The holders of
// a dropped bucket report it again.
func (s *Service) evict(p *pool, a *address) bool {
	s.counts.Unserved++
	s.mistake("clients at one address have more than GRPC_ADDRESS_SHARE of RLQS_MEMORY_IN_BYTES or of a domain's buckets, so they lose some to other addresses", "", nil)
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

// part removes h from its bucket and from its stream. The stream continues.
func (h *holder) part() {
	delete(h.bucket.holders, h)
	delete(h.stream.holders, h.bucket.key)
	h.stream.service.memory.Add(h.stream.from, -holderBytes)
}

// lock locks the service. Only one stream of each address waits for the lock at a time; otherwise many streams of one address could delay
// those of others.
func (s *stream) lock() {
	s.from.turn.Lock()
	s.service.mu.Lock()
}

// unlock releases the locks of lock.
func (s *stream) unlock() {
	s.service.mu.Unlock()
	s.from.turn.Unlock()
}

// wait releases the locks until c fires or the call ends.
func (s *stream) wait(c <-chan time.Time) {
	s.unlock()
	defer s.lock()
	select {
	case <-c:
	case <-s.call.Context().Done():
	}
}

// work waits until the address may cause work of the given cost. It returns an error if the stream has ended.
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
		s.wait(nil) // while its last assignments are being sent
		return errDrained
	}
	return nil
}
