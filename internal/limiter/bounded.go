package limiter

import (
	"maps"
	"sync"
	"sync/atomic"
)

// bounded maps names that requests bring about to what counts them: at most max of them, none longer than longest, and
// one thing for all others. Looking up a name that is known, or one of the others, takes no lock and does not allocate.
// The zero value knows nothing; max and longest must be set before use.
type bounded[T any] struct {
	max, longest int

	settled atomic.Pointer[map[string]*T] // never written to
	other   atomic.Pointer[T]             // nil until needed
	full    atomic.Bool                   // max names are known, all of them are settled, and other is not nil
	mu      sync.Mutex
	recent  map[string]*T // known, and not settled yet
	misses  int           // lookups that found a name in recent
}

// find returns what counts name, or nil where add has to be asked.
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

// add returns what counts name, made by fresh if it is new, or by other if it is the first one beyond the bounds.
func (b *bounded[T]) add(name []byte, fresh, other func() *T) *T {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.find(name); t != nil { // somebody was faster
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

// settle moves what is known to where it is found without a lock. It copies, so it is done when as many lookups have
// been slow as there are names to copy.
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
