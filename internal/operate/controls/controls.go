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

const mostForScoped = "the maximum for tokens limited to some domains: lift some first"

// Errors of [Controls].
var (
	// ErrFull is wrapped by the error for a control that there is no room for. The error says whose bound it is.
	ErrFull       = errors.New("there is no room for another control")
	errFullAll    = fmt.Errorf("%w: %d are active, which is the maximum: lift some first", ErrFull, Max)
	errFullScoped = fmt.Errorf("%w: %d are active, %s", ErrFull, MaxScoped, mostForScoped)
	errFullDomain = fmt.Errorf("%w: %d are active in this domain, %s", ErrFull, MaxOfDomain, mostForScoped)
	errFullKept   = fmt.Errorf("%w: too many lifted controls are remembered until their original expiry: wait, or set shorter durations", ErrFull)
	// ErrUnknown is wrapped by the error for a control that is not in force.
	ErrUnknown = errors.New("no such control is active")
	// ErrStore is wrapped by errors of the store. The change may have been made all the same.
	ErrStore = errors.New("asking the backend for controls")
)

// Config says where controls are kept. The zero value keeps them only in this process.
type Config struct {
	Store replicated.Store // nil if there is none
	Alone string           // why there is none, for people
	Says  func() string    // what this process says of itself to other replicas; may be nil
	Log   *slog.Logger     // nil discards
}

// Controls are the controls of this process. Its methods are safe for concurrent use.
type Controls struct {
	alone    string
	register *replicated.Register
	entries  *entries
}

// New returns controls, of which there are none yet.
func New(c Config) *Controls {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Says == nil {
		c.Says = func() string { return "" }
	}
	v := &Controls{alone: c.Alone, entries: newEntries()}
	v.register = replicated.New(replicated.Config{
		Table: v.entries, Store: c.Store, What: "controls", Says: c.Says, Failed: ErrStore, Log: c.Log,
	})
	v.entries.now = v.register.Now
	return v
}

// Now returns the time by the clock that ends controls, which is that of the store.
func (c *Controls) Now() time.Time { return c.register.Now() }

// Overrides returns where the controls that are active now are published: nil if there are none.
func (c *Controls) Overrides() *atomic.Pointer[override.Table] { return &c.entries.table }

// First is closed once the controls of the store are known, or asking the store has failed.
func (c *Controls) First() <-chan struct{} { return c.register.First() }

// String names the task.
func (c *Controls) String() string { return "controls" }

// Run ends controls when their time is over, and keeps this process in step with the store, until ctx ends. Neither waits for the
// other.
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

// Reach says on which replicas a control is in force.
type Reach struct {
	Replicas []Replica // sorted by name; none if they are not known now
	Alone    string    // why it is only this process; empty if all replicas share the store
}

// Replica is one of the processes that share a store.
type Replica struct {
	Name string
	Says string // of itself; empty if it says nothing
	Self bool   // it is this process
}

// Reach returns on which replicas controls are in force.
func (c *Controls) Reach(ctx context.Context) Reach {
	if !c.register.Shared() {
		return Reach{Alone: c.Alone()}
	}
	texts, err := c.register.Replicas(ctx)
	if err != nil { // the number is then not known
		return Reach{}
	}
	return Reach{Replicas: replicas(texts, c.register.Name())}
}

// replicas returns the replicas in texts. Where several texts are about one replica, the last one counts.
func replicas(texts []string, self string) (all []Replica) {
	says := make(map[string]string, len(texts))
	for _, text := range texts {
		name, state, _ := strings.Cut(text, " ")
		says[name] = state
	}
	for _, name := range slices.Sorted(maps.Keys(says)) {
		all = append(all, Replica{Name: name, Says: says[name], Self: name == self})
	}
	return all
}

// Alone returns why controls are only those of this process; empty if all replicas share the store.
func (c *Controls) Alone() string {
	if c.register.Shared() {
		return ""
	}
	return cmp.Or(c.alone, "it does not share its controls")
}

// List returns the controls in force, sorted by domain, entries and kind.
func (c *Controls) List(ctx context.Context) []*override.Control {
	_ = c.register.Sync(ctx) // else the last known ones
	return c.Known()
}

// Known returns the controls that List returns, without asking the store.
func (c *Controls) Known() []*override.Control { return c.entries.live() }

func compare(a, b *override.Control) int {
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), slices.Compare(flat(a.Entries), flat(b.Entries)), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID))
}

// Set puts w in force for a time, from now on. It fills in the ID, Since and Until of w, and returns the control that w replaces,
// if there is one. With dry nothing is changed.
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

// Lift ends controls before their time, and returns what they were. All of them must be in force, or none is lifted. With
// dry nothing is changed.
func (c *Controls) Lift(ctx context.Context, ids []string, dry bool) (lifted []*override.Control, err error) {
	err = c.register.Put(ctx, func() (gone []replicated.Entry, err error) {
		all := c.entries.live()
		lifted = nil // of a try that came too late
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
