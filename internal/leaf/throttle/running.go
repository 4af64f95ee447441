package throttle

import "sync"

// Running counts and bounds operations in progress, in total and by a key such as the caller. It is safe for concurrent use. Create it
// with [AtMost].
type Running[K comparable] struct {
	perKey, inAll int

	mu    sync.Mutex
	byKey map[K]int // only those above 0
	all   int
}

// AtMost returns a Running with bounds per key and in total.
func AtMost[K comparable](perKey, inAll int) *Running[K] {
	return &Running[K]{perKey: perKey, inAll: inAll, byKey: make(map[K]int)}
}

// Full reports whether no operation with a key may begin now.
func (r *Running[K]) Full(key K) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.full(key)
}

func (r *Running[K]) full(key K) bool { return r.all >= r.inAll || r.byKey[key] >= r.perKey }

// Begin counts the beginning of an operation. ok is false if there are too many. Otherwise the caller must call done at the end.
func (r *Running[K]) Begin(key K) (done func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.full(key) {
		return nil, false
	}
	r.all++
	r.byKey[key]++
	return func() { r.end(key) }, true
}

func (r *Running[K]) end(key K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all--
	if r.byKey[key]--; r.byKey[key] == 0 {
		delete(r.byKey, key)
	}
}
