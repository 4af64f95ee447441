package throttle

import "sync"

// Running counts what is in progress, by a key such as its caller, and bounds it. It is safe for concurrent use. Make it with [AtMost].
type Running[K comparable] struct {
	perKey, inAll int

	mu    sync.Mutex
	byKey map[K]int // those that are not 0
	all   int
}

// AtMost returns a Running for so much at a time with the same key, and in all.
func AtMost[K comparable](perKey, inAll int) *Running[K] {
	return &Running[K]{perKey: perKey, inAll: inAll, byKey: make(map[K]int)}
}

// Full reports whether nothing with a key may begin now.
func (r *Running[K]) Full(key K) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.full(key)
}

func (r *Running[K]) full(key K) bool { return r.all >= r.inAll || r.byKey[key] >= r.perKey }

// Begin counts something with a key that begins, unless there is too much: then it is not ok. Otherwise done has to be called at its end.
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
