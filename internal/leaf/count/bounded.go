package count

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"
)

// Bounded maps names that depend on requests to counters: at most max names, with a total length of room bytes, and a single T for all
// other names. The length of a name alone does not exclude it; a long name uses the room of several short ones. A lookup takes no lock
// and does not allocate if the name has been published, or if it is excluded because max or room is used up. The zero value is empty.
// Bound must be called before use.
type Bounded[T any] struct {
	max, room int

	published atomic.Pointer[map[string]*T] // immutable map
	other     atomic.Pointer[T]             // T of all other names; nil until needed
	tooLong   atomic.Int64                  // names of at least this length exist only in published, and other is not nil; 0 means none
	mu        sync.Mutex
	recent    map[string]*T // names that are not in published yet
	used      int           // total length of all names in bytes
	misses    uint32        // lookups that found a name in recent
	full      atomic.Bool   // max names exist, all in published, and other is not nil
}

// minRoom leaves room for a few very long names if max is low.
const minRoom = 64 << 10

// Bound sets the maximum number of names, and their mean length in bytes.
func (b *Bounded[T]) Bound(most, length int) {
	b.max, b.room = most, max(min(most, math.MaxInt/length)*length, minRoom)
}

// Get returns the T of a name. For a new name, it calls fresh with the name or, for the first name beyond the bounds, with [Other].
func (b *Bounded[T]) Get(name []byte, fresh func(name string) *T) *T {
	if t := b.find(name); t != nil {
		return t
	}
	return b.add(name, fresh)
}

// find returns the T of a name, or nil if the name may be new.
func (b *Bounded[T]) find(name []byte) *T {
	tooLong := b.tooLong.Load() // load before published, which contains all existing names of this length
	closed := b.full.Load() || tooLong > 0 && int64(len(name)) >= tooLong
	if m := b.published.Load(); m != nil {
		if t, ok := (*m)[string(name)]; ok {
			return t
		}
	}
	if closed {
		return b.other.Load()
	}
	return nil
}

// add returns the T of a name that find has not found.
func (b *Bounded[T]) add(name []byte, fresh func(name string) *T) *T {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.find(name); t != nil { // another goroutine was faster
		return t
	}
	t, ok := b.recent[string(name)]
	switch {
	case ok:
		b.misses++
	case len(name) > b.room-b.used:
		b.publish()
		t = b.others(fresh)
		b.tooLong.Store(int64(b.room - b.used + 1))
		return t
	default:
		t = fresh(string(name))
		if b.recent == nil {
			b.recent = make(map[string]*T)
		}
		b.recent[string(name)] = t
		b.used += len(name)
	}
	if n := b.size(); n >= b.max {
		b.publish()
		b.others(fresh)
		b.full.Store(true)
	} else if int(b.misses) >= n {
		b.publish()
	}
	return t
}

// others returns the T of all other names.
func (b *Bounded[T]) others(fresh func(name string) *T) *T {
	if b.other.Load() == nil {
		b.other.Store(fresh(Other))
	}
	return b.other.Load()
}

// size returns the number of names.
func (b *Bounded[T]) size() int {
	n := len(b.recent)
	if m := b.published.Load(); m != nil {
		n += len(*m)
	}
	return n
}

// publish moves all names to published, where lookups need no lock. This copies the names, so it is done only after as many slow lookups as
// there are names, or if names of some length become excluded.
func (b *Bounded[T]) publish() {
	all := make(map[string]*T, b.size())
	if m := b.published.Load(); m != nil {
		maps.Copy(all, *m)
	}
	maps.Copy(all, b.recent)
	b.published.Store(&all)
	clear(b.recent)
	b.misses = 0
}

// Each calls f for the T of each name, and for that of all other names.
func (b *Bounded[T]) Each(f func(*T)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.published.Load(); m != nil {
		for _, t := range *m {
			f(t)
		}
	}
	for _, t := range b.recent {
		f(t)
	}
	if t := b.other.Load(); t != nil {
		f(t)
	}
}
