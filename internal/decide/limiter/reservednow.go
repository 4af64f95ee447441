package limiter

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
)

// maxReserved is the maximum number of counters of a rule that its gauge of reserved hits includes.
const maxReserved = 10_000

// reservedNow tracks the reserved hits of a rule's counters, as this process's last decision on each counter reported them. A counter
// drops out when its last reported reservation must have expired. The zero value is empty and small, since few rules have reservations.
type reservedNow struct {
	counters atomic.Pointer[reservedCounters]
}

type reservedCounters struct {
	mu  sync.Mutex
	all map[backend.Key]reservedAt
}

type reservedAt struct {
	hits uint64
	ends time.Time
}

// see records the reserved hits reported by a decision. Reservations last for ttl.
func (r *reservedNow) see(k backend.Key, hits uint64, ttl time.Duration) {
	n := r.counters.Load()
	if n == nil {
		if hits == 0 {
			return
		}
		r.counters.CompareAndSwap(nil, &reservedCounters{all: make(map[backend.Key]reservedAt)})
		n = r.counters.Load()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if hits == 0 {
		delete(n.all, k)
		return
	}
	if _, ok := n.all[k]; ok || len(n.all) < maxReserved {
		n.all[k] = reservedAt{hits, time.Now().Add(ttl)}
	}
}

// sum returns the reserved hits of all counters, and drops the counters that have expired.
func (r *reservedNow) sum() (hits uint64) {
	n := r.counters.Load()
	if n == nil {
		return 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	for k, at := range n.all {
		if now.After(at.ends) {
			delete(n.all, k)
		} else {
			hits += at.hits
		}
	}
	return hits
}
