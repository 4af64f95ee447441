package limiter

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
)

// maxReserved is how many counters of a rule its gauge of reserved hits knows.
const maxReserved = 10_000

// reservedNow counts how many hits of a rule's counters are reserved, by what the backend said when this process last decided on
// each of them. A counter stops counting when its last known reservation must have expired. The zero value knows no counter, and is
// small, since few rules have reservations.
type reservedNow struct {
	known atomic.Pointer[reservedCounters]
}

type reservedCounters struct {
	mu  sync.Mutex
	all map[backend.Key]reservedAt
}

type reservedAt struct {
	hits uint64
	ends time.Time
}

// see notes the reserved hits that a decision reported, for reservations that last for ttl.
func (r *reservedNow) see(k backend.Key, hits uint64, ttl time.Duration) {
	n := r.known.Load()
	if n == nil {
		if hits == 0 {
			return
		}
		r.known.CompareAndSwap(nil, &reservedCounters{all: make(map[backend.Key]reservedAt)})
		n = r.known.Load()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if hits == 0 {
		delete(n.all, k)
		return
	}
	if _, known := n.all[k]; known || len(n.all) < maxReserved {
		n.all[k] = reservedAt{hits, time.Now().Add(ttl)}
	}
}

// sum returns how many there are, and forgets those that have expired.
func (r *reservedNow) sum() (hits uint64) {
	n := r.known.Load()
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
