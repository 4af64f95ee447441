package count

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"
)

// Bounded maps names that depend on requests to what counts them: at most max names, of room bytes together, and a
// single T for all others. No name is among the others for its length alone: a long one takes the room of several short
// ones. Looking up a known name, or one of the others once max is reached or there is no room for it, takes no lock and
// does not allocate. The zero value is empty; Bound must be called before use.
type Bounded[T any] struct {
	max, room int

	settled atomic.Pointer[map[string]*T] // never written to
	other   atomic.Pointer[T]             // nil until needed
	barred  atomic.Int64                  // names of so many bytes or more are not known unless settled, and other is not nil; 0 if all fit
	mu      sync.Mutex
	recent  map[string]*T // known but not settled yet
	used    int           // bytes of all known names
	misses  uint32        // lookups that found a name in recent
	full    atomic.Bool   // max names are known, all of them settled, and other is not nil
}

// minRoom lets a few very long names fit where max is low.
const minRoom = 64 << 10

// Bound allows max names, of length bytes each on average.
func (b *Bounded[T]) Bound(most, length int) {
	b.max, b.room = most, max(min(most, math.MaxInt/length)*length, minRoom)
}

// Get returns what counts name. If the name is new it is made by fresh, which is given the name; or else, for the first one beyond the
// bounds, by fresh given [Other].
func (b *Bounded[T]) Get(name []byte, fresh func(name string) *T) *T {
	if t := b.find(name); t != nil {
		return t
	}
	return b.add(name, fresh)
}

// find returns what counts name, or nil if it may be new.
func (b *Bounded[T]) find(name []byte) *T {
	barred := b.barred.Load() // before settled, which has all names that this bars
	closed := b.full.Load() || barred > 0 && int64(len(name)) >= barred
	if m := b.settled.Load(); m != nil {
		if t, ok := (*m)[string(name)]; ok {
			return t
		}
	}
	if closed {
		return b.other.Load()
	}
	return nil
}

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
		b.settle()
		t = b.others(fresh)
		b.barred.Store(int64(b.room - b.used + 1))
		return t
	default:
		t = fresh(string(name))
		if b.recent == nil {
			b.recent = make(map[string]*T)
		}
		b.recent[string(name)] = t
		b.used += len(name)
	}
	if known := b.known(); known >= b.max {
		b.settle()
		b.others(fresh)
		b.full.Store(true)
	} else if int(b.misses) >= known {
		b.settle()
	}
	return t
}

func (b *Bounded[T]) others(fresh func(name string) *T) *T {
	if b.other.Load() == nil {
		b.other.Store(fresh(Other))
	}
	return b.other.Load()
}

func (b *Bounded[T]) known() int {
	n := len(b.recent)
	if m := b.settled.Load(); m != nil {
		n += len(*m)
	}
	return n
}

// settle moves all known names to where they are found without a lock. That copies them, so it is done only when there
// have been as many slow lookups as there are names to copy, and when a name has to be barred.
func (b *Bounded[T]) settle() {
	all := make(map[string]*T, b.known())
	if m := b.settled.Load(); m != nil {
		maps.Copy(all, *m)
	}
	maps.Copy(all, b.recent)
	b.settled.Store(&all)
	clear(b.recent)
	b.misses = 0
}

// Each calls f with what counts each name, and with what counts the others.
func (b *Bounded[T]) Each(f func(*T)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.settled.Load(); m != nil {
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
