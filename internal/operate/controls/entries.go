package controls

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
)

// MaxKept is the maximum number of controls remembered: active ones, and lifted ones until their original expiry, so that they
// do not return. A lifted control takes about 300 bytes.
const MaxKept = 10 * Max

// clockEach is the maximum delay until a change of the store's clock takes effect.
const clockEach = time.Second

// entries are the known controls, as a [replicated.Table].
type entries struct {
	table atomic.Pointer[override.Table]
	early chan struct{}    // wakes run, because the next end may be earlier
	now   func() time.Time // by the store's clock

	mu    sync.Mutex
	byKey map[string]stored // by key
	next  time.Time         // the earliest end in the table; zero if the table is empty
}

// stored is an entry with its control.
type stored struct {
	replicated.Entry

	control *override.Control
	lifted  bool // lifted early: control has only its domain
}

func newEntries() *entries {
	return &entries{early: make(chan struct{}, 1), now: time.Now, byKey: make(map[string]stored)}
}

// Entry implements [replicated.Table].
func (t *entries) Entry(key string) replicated.Entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byKey[key].Entry
}

// Take implements [replicated.Table].
func (t *entries) Take(e *replicated.Entry) error {
	c, lifted, err := fromEntry(e)
	t.mu.Lock()
	defer t.mu.Unlock()
	if delete(t.byKey, e.Key); err == nil {
		t.byKey[e.Key] = stored{*e, c, lifted}
	}
	return err
}

// Keys implements [replicated.Table].
func (t *entries) Keys() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.byKey))
}

// Drop implements [replicated.Table].
func (t *entries) Drop(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byKey, key)
}

// Settle implements [replicated.Table] by publishing a new table.
func (t *entries) Settle(before int64) {
	t.mu.Lock()
	maps.DeleteFunc(t.byKey, func(_ string, k stored) bool { return k.Expires < before })
	t.build()
	t.mu.Unlock()
	select {
	case t.early <- struct{}{}:
	default:
	}
}

// build publishes a table of the active controls. The caller holds t.mu.
func (t *entries) build() {
	all := t.sorted()
	t.table.Store(override.NewTable(all))
	t.next = time.Time{}
	for _, c := range all {
		if t.next.IsZero() || c.Until.Before(t.next) {
			t.next = c.Until
		}
	}
}

// sorted returns the active controls in order. The caller holds t.mu.
func (t *entries) sorted() []*override.Control {
	now := t.now()
	all := make([]*override.Control, 0, len(t.byKey))
	for _, k := range t.byKey {
		if k.inForce(now) {
			all = append(all, k.control)
		}
	}
	slices.SortFunc(all, compare)
	return all
}

func (k *stored) inForce(now time.Time) bool {
	return k.control != nil && !k.lifted && now.Before(k.control.Until)
}

// live returns the active controls, sorted by domain, entries, and kind.
func (t *entries) live() []*override.Control {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sorted()
}

// inForce returns the active control with this key, or nil.
func (t *entries) inForce(key string) *override.Control {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := t.byKey[key]; k.inForce(t.now()) {
		return k.control
	}
	return nil
}

// room returns an error if there is no room for w, which replaces no other control.
func (t *entries) room(w *override.Control) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	var live, kept, ofDomain, keptOfDomain int
	for _, k := range t.byKey {
		kept++
		if k.inForce(now) {
			live++
		}
		if k.control.Domain != w.Domain {
			continue
		}
		keptOfDomain++
		if k.inForce(now) {
			ofDomain++
		}
	}
	switch {
	case live >= Max:
		return errFullAll
	case w.Scoped && ofDomain >= MaxOfDomain:
		return errFullDomain
	case w.Scoped && live >= MaxScoped:
		return errFullScoped
	case kept >= MaxKept, w.Scoped && (kept >= MaxKept/2 || keptOfDomain >= MaxKept/10):
		return errFullKept
	}
	return nil
}

// run removes expired controls from the table until ctx ends.
func (t *entries) run(ctx context.Context) {
	for {
		timer := time.NewTimer(t.end())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-t.early:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// end removes expired controls from the table, and returns the time until its next call.
func (t *entries) end() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.now(); !t.next.IsZero() && !now.Before(t.next) {
		t.build()
	}
	if t.next.IsZero() {
		return Longest
	}
	return min(t.next.Sub(t.now()), clockEach)
}
