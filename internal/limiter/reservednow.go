package limiter

import (
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
)

// maxReserved is how many counters of a rule its gauge of reserved hits knows.
const maxReserved = 10_000

// reservedNow is how many hits of a rule's counters are reserved, as the store said when this process last decided on each. A counter
// that nobody has asked for since its last reservation must have expired counts no more. The zero value knows none.
type reservedNow struct {
	mu  sync.Mutex
	all map[backend.Key]reservedAt
}

type reservedAt struct {
	hits uint64
	ends time.Time
}

// see takes down what a decision said, whose reservations last for ttl.
func (r *reservedNow) see(k backend.Key, hits uint64, ttl time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.all[k]
	switch {
	case hits == 0:
		delete(r.all, k)
		return
	case !known && len(r.all) >= maxReserved:
		return
	case r.all == nil:
		r.all = make(map[backend.Key]reservedAt)
	}
	r.all[k] = reservedAt{hits, time.Now().Add(ttl)}
}

// sum returns how many there are, and forgets those that have expired.
func (r *reservedNow) sum() (hits uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for k, at := range r.all {
		if now.After(at.ends) {
			delete(r.all, k)
		} else {
			hits += at.hits
		}
	}
	return hits
}
