package controls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
)

const tooManyScoped = "the maximum for tokens limited to some domains: lift some first"

// Errors of [Controls].
var (
	// ErrFull is wrapped by errors for lack of room. Their text names the limit.
	ErrFull       = errors.New("there is no room for another control")
	errFullAll    = fmt.Errorf("%w: %d are active, which is the maximum: lift some first", ErrFull, Max)
	errFullScoped = fmt.Errorf("%w: %d are active, %s", ErrFull, MaxScoped, tooManyScoped)
	errFullDomain = fmt.Errorf("%w: %d are active in this domain, %s", ErrFull, MaxOfDomain, tooManyScoped)
	errFullKept   = fmt.Errorf("%w: too many lifted controls are remembered until their original expiry: wait, or set shorter durations", ErrFull)
	// ErrUnknown is wrapped by errors for controls that are not active.
	ErrUnknown = errors.New("no such control is active")
	// ErrStore is wrapped by errors of the store. The change may still have been made.
	ErrStore = errors.New("asking the backend for controls")
)

// Config configures [Controls]. The zero value keeps controls only in this process.
type Config struct {
	Store    replicated.Store // nil without a store
	Unshared string           // the reason why Store is nil, for people
	Status   func() string    // describes this process to other replicas; may be nil
	Log      *slog.Logger     // nil discards
}

// Controls are the active controls. Its methods are safe for concurrent use.
type Controls struct {
	unshared string
	register *replicated.Register
	entries  *entries
}

// New returns Controls, without any control yet.
func New(c Config) *Controls {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Status == nil {
		c.Status = func() string { return "" }
	}
	v := &Controls{unshared: c.Unshared, entries: newEntries()}
	v.register = replicated.New(replicated.Config{
		Table: v.entries, Store: c.Store, What: "controls", Status: c.Status, Failed: ErrStore, Log: c.Log,
	})
	v.entries.now = v.register.Now
	return v
}

// Now returns the time of the store's clock, which decides when controls expire.
func (c *Controls) Now() time.Time { return c.register.Now() }

// Overrides returns the pointer to the current table of active controls. It holds nil if there are none.
func (c *Controls) Overrides() *atomic.Pointer[override.Table] { return &c.entries.table }

// First returns a channel that is closed once the store's controls are loaded, or the store has failed.
func (c *Controls) First() <-chan struct{} { return c.register.First() }

// String returns the name of the task.
func (c *Controls) String() string { return "controls" }

// Run expires controls and synchronizes with the store until ctx ends. Neither waits for the other.
func (c *Controls) Run(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.entries.run(ctx)
	}()
	err := c.register.Run(ctx)
	<-ended
	return err
}

// Reach describes the replicas that controls apply to.
type Reach struct {
	Replicas []Replica // sorted by name; empty if unknown
	Unshared string    // the reason why it is only this process, or empty if all replicas share the store
}

// Replica is a process that shares the store.
type Replica struct {
	Name   string
	Status string // its self-description, or empty
	Self   bool   // whether it is this process
}

// Reach returns the replicas that controls apply to.
func (c *Controls) Reach(ctx context.Context) Reach {
	if !c.register.Shared() {
		return Reach{Unshared: c.Unshared()}
	}
	texts, err := c.register.Replicas(ctx)
	if err != nil { // the replicas are then unknown
		return Reach{}
	}
	return Reach{Replicas: replicas(texts, c.register.Name())}
}

// replicas parses the store's texts. If several describe one replica, the last one counts.
func replicas(texts []string, self string) (all []Replica) {
	says := make(map[string]string, len(texts))
	for _, text := range texts {
		name, state, _ := strings.Cut(text, " ")
		says[name] = state
	}
	for _, name := range slices.Sorted(maps.Keys(says)) {
		all = append(all, Replica{Name: name, Status: says[name], Self: name == self})
	}
	return all
}

// Unshared returns the reason why controls apply only to this process, or "" if all replicas share the store.
func (c *Controls) Unshared() string {
	if c.register.Shared() {
		return ""
	}
	return cmp.Or(c.unshared, "it does not share its controls")
}

// List synchronizes with the store, and returns the active controls, sorted by domain, entries, and kind.
func (c *Controls) List(ctx context.Context) []*override.Control {
	_ = c.register.Sync(ctx) // after an error, use the last known controls
	return c.Cached()
}

// Cached returns the active controls like List, but does not ask the store.
func (c *Controls) Cached() []*override.Control { return c.entries.live() }

func compare(a, b *override.Control) int {
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), slices.Compare(flat(a.Entries), flat(b.Entries)), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID))
}

// Set activates w for span, replacing a control of the same kind and descriptor, which it returns, or nil. It sets ID, Since, and
// Until of w. With dry, it changes nothing.
func (c *Controls) Set(ctx context.Context, w *override.Control, span time.Duration, dry bool) (before *override.Control, err error) {
	if err := validate(w, span); err != nil {
		return nil, err
	}
	err = c.register.Put(ctx, func() ([]replicated.Entry, error) {
		w.Since = c.register.Now().Truncate(time.Millisecond)
		w.Until = w.Since.Add(span).Truncate(time.Millisecond)
		w.ID = newID()
		var full error
		if before = c.entries.inForce(keyOf(w)); before != nil {
			w.ID = before.ID
		} else {
			full = c.entries.room(w)
		}
		if full != nil || dry {
			return nil, full
		}
		e, err := entryOf(w)
		return []replicated.Entry{e}, err
	})
	if errors.Is(err, replicated.ErrFull) {
		err = errFullKept
	}
	return before, err
}

// Lift ends controls early, and returns them. If one of them is not active, none is lifted. With dry, it changes nothing.
func (c *Controls) Lift(ctx context.Context, ids []string, dry bool) (lifted []*override.Control, err error) {
	err = c.register.Put(ctx, func() (gone []replicated.Entry, err error) {
		all := c.entries.live()
		lifted = nil // discard an earlier attempt
		for _, id := range ids {
			i := slices.IndexFunc(all, func(n *override.Control) bool { return n.ID == id })
			if i < 0 {
				return nil, fmt.Errorf("%w: %q", ErrUnknown, id)
			}
			e, err := liftedOf(all[i])
			if err != nil {
				return nil, err
			}
			lifted, gone = append(lifted, all[i]), append(gone, e)
		}
		if dry {
			return nil, nil
		}
		return gone, nil
	})
	return lifted, err
}
