package limiter

import (
	"maps"
	"sync"
	"sync/atomic"
)

// bounded maps names that depend on requests to what counts them: at most max names, none longer than longest, and a
// single T for all others. Looking up a known name, or one of the others once max is reached, takes no lock and does
// not allocate. The zero value is empty; max and longest must be set before use.
type bounded[T any] struct {
	max, longest int

	settled atomic.Pointer[map[string]*T] // never written to
	other   atomic.Pointer[T]             // nil until needed
	full    atomic.Bool                   // max names are known, all of them settled, and other is not nil
	mu      sync.Mutex
	recent  map[string]*T // known but not settled yet
	misses  int           // lookups that found a name in recent
}

// find returns what counts name, or nil if add has to be called.
func (b *bounded[T]) find(name []byte) *T {
	if len(name) > b.longest {
		return b.other.Load()
	}
	if m := b.settled.Load(); m != nil {
		if t, ok := (*m)[string(name)]; ok {
			return t
		}
	}
	if b.full.Load() {
		return b.other.Load()
	}
	return nil
}

// add returns what counts name. It calls fresh if the name is new, or other if it is the first one beyond the bounds.
func (b *bounded[T]) add(name []byte, fresh, other func() *T) *T {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.find(name); t != nil { // another goroutine was faster
		return t
	}
	if len(name) > b.longest {
		return b.others(other)
	}
	t, ok := b.recent[string(name)]
	if ok {
		b.misses++
	} else {
		t = fresh()
		if b.recent == nil {
			b.recent = make(map[string]*T)
		}
		b.recent[string(name)] = t
	}
	if known := b.known(); known >= b.max {
		b.settle()
		b.others(other)
		b.full.Store(true)
	} else if b.misses >= known {
		b.settle()
	}
	return t
}

func (b *bounded[T]) others(other func() *T) *T {
	if b.other.Load() == nil {
		b.other.Store(other())
	}
	return b.other.Load()
}

func (b *bounded[T]) known() int {
	n := len(b.recent)
	if m := b.settled.Load(); m != nil {
		n += len(*m)
	}
	return n
}

// settle moves all known names to where they are found without a lock. That copies them, so it is done only when there
// have been as many slow lookups as there are names to copy.
func (b *bounded[T]) settle() {
	all := make(map[string]*T, b.known())
	if m := b.settled.Load(); m != nil {
		maps.Copy(all, *m)
	}
	maps.Copy(all, b.recent)
	b.settled.Store(&all)
	clear(b.recent)
	b.misses = 0
}
