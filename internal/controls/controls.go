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
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/throttle"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
)

// How often the store is asked, and how long that may take.
const (
	pollEach  = 300 * time.Millisecond
	pollAfter = 500 * time.Millisecond // after an error
	storeTime = time.Second
	beatEach  = 2 * time.Second
	silentFor = 3 * time.Second // errors are logged if they last so long
)

// Store keeps the controls of all replicas that share it. Its methods are not called concurrently.
type Store interface {
	noteStore

	// Replicas returns the names of the processes that poll, those that polled last behind the others. What a process says of itself
	// follows its name, after a blank.
	Replicas(ctx context.Context) ([]string, error)
	// Name returns the name of this process.
	Name() string
	// Leave takes this process off the replicas, and ends the connection.
	Leave(ctx context.Context)
}

// noteStore keeps controls.
type noteStore interface {
	// Poll returns what is new since a version. With beat, this process is one of the replicas from now on.
	Poll(ctx context.Context, since backend.Version, beat bool) (backend.Notes, error)
	// Put stores notes, each later than the one that it takes the place of, and returns when they were made. It returns
	// [backend.ErrNotesFull] where there would be more than most.
	Put(ctx context.Context, notes []backend.Note, most int) (at []int64, err error)
	// PutBack stores notes again that the store has lost, unless it has later ones or they were taken away and forgotten. From then
	// on what is not later than horizon, and not there, was taken away.
	PutBack(ctx context.Context, notes []backend.Note, horizon int64) error
}

const mostForScoped = "which is the most for tokens that are for some domains only: lift some first"

// Errors of [Controls].
var (
	// ErrFull is wrapped by the error for a control that there is no room for, which says whose bound it is.
	ErrFull       = errors.New("there is no room for another control")
	errFullAll    = fmt.Errorf("%w: %d are in force, which is the most: lift some first", ErrFull, Max)
	errFullScoped = fmt.Errorf("%w: %d are in force, %s", ErrFull, MaxScoped, mostForScoped)
	errFullDomain = fmt.Errorf("%w: %d of this domain are in force, %s", ErrFull, MaxOfDomain, mostForScoped)
	// ErrUnknown is wrapped by the error for a control that is not in force.
	ErrUnknown = errors.New("no such control is in force")
	// ErrStore is wrapped by errors of the store. What was to be changed may have been changed.
	ErrStore = errors.New("asking the store of the controls")
)

// Config says where controls are kept. The zero value keeps them in this process alone.
type Config struct {
	Store Store        // nil if there is none
	Alone string       // why there is none, for people
	Log   *slog.Logger // nil discards
}

// Controls are the controls of this process. Its methods are safe for concurrent use.
type Controls struct {
	config Config
	log    *slog.Logger
	table  atomic.Pointer[Table]
	first  chan struct{} // closed once the store has been asked
	early  chan struct{} // has an element when the next end may be earlier than Run thinks

	asking  chan struct{}   // has an element while nobody asks the store; who has taken it may use what follows
	version backend.Version // of what is known, or was read so far
	reading *reading        // while all is read again; otherwise nil
	horizon int64           // what is not later than this, and not known, was lifted
	atOnce  int             // how many notes are written back in one call
	beaten  time.Time
	unheard error           // why the store was not told last that this process is there, though it can be read
	outage  throttle.Outage // of the store

	mu    sync.Mutex
	known map[string]known // by ID; with those of the store that were lifted and would not have ended yet
	stale bool             // the table is older than what is known
}

// known is a note, and the control that it is: nil if it was lifted or cannot be read.
type known struct {
	backend.Note

	control *Control
}

// New returns controls, of which there are none yet.
func New(c Config) *Controls {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	v := &Controls{
		config: c, log: c.Log, first: make(chan struct{}), early: make(chan struct{}, 1), asking: make(chan struct{}, 1), known: make(map[string]known),
		atOnce: putBackAtOnce, outage: throttle.After(silentFor),
	}
	v.asking <- struct{}{}
	return v
}

// Table returns what decides now; nil if there are no controls.
func (c *Controls) Table() *Table { return c.table.Load() }

// First is closed once Run has asked the store for the first time, successfully or not.
func (c *Controls) First() <-chan struct{} { return c.first }

// String names the task.
func (c *Controls) String() string { return "controls" }

// Run ends controls when their time is over, and keeps this process in step with the store, until ctx ends.
func (c *Controls) Run(ctx context.Context) error {
	for first := true; ; first = false {
		wait := Longest
		if c.config.Store != nil {
			wait = c.poll(ctx)
		}
		if end, ok := c.expire(time.Now()); ok {
			wait = min(wait, time.Until(end))
		}
		if first {
			close(c.first)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			c.leave(ctx)
			return nil
		case <-c.early:
			timer.Stop()
		case <-timer.C:
		}
	}
}

func (c *Controls) leave(ctx context.Context) {
	if c.config.Store == nil {
		return
	}
	<-c.asking // for good
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pollEach)
	defer cancel()
	c.config.Store.Leave(ctx)
}

// Reach is for whom a control is in force.
type Reach struct {
	Replicas []Replica // sorted by name; none if they are not known now
	Alone    string    // why it is this process alone; empty if all replicas share the store
}

// Replica is one of the processes that share a store.
type Replica struct {
	Name string
	Says string // of itself; empty if it says nothing
	Self bool   // it is this process
}

// Reach returns for whom controls are in force.
func (c *Controls) Reach(ctx context.Context) Reach {
	if c.config.Store == nil {
		return Reach{Alone: c.Alone()}
	}
	var r Reach
	_ = c.ask(ctx, func(ctx context.Context) error { // the number is then not known
		texts, err := c.config.Store.Replicas(ctx)
		r.Replicas = replicas(texts, c.config.Store.Name())
		return err
	})
	return r
}

// replicas returns the replicas in texts, of which the last one about each is what it says now.
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

// Alone returns why controls are those of this process alone; empty if all replicas share the store.
func (c *Controls) Alone() string {
	if c.config.Store != nil {
		return ""
	}
	return cmp.Or(c.config.Alone, "it keeps its controls to itself")
}

// List returns the controls in force, sorted by domain, entries and kind.
func (c *Controls) List(ctx context.Context) []*Control {
	if c.config.Store != nil {
		_ = c.ask(ctx, c.sync) // else the last known ones
	}
	return c.inForce()
}

func compare(a, b *Control) int {
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), slices.Compare(flat(a.Entries), flat(b.Entries)), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID))
}

// Set puts w in force for a time, from now on. It fills in its ID, Since and Until, and returns the control that it takes the
// place of, if there is one. With dry nothing is changed.
func (c *Controls) Set(ctx context.Context, w *Control, span time.Duration, dry bool) (before *Control, err error) {
	if err := w.validate(span); err != nil {
		return nil, err
	}
	w.Since = time.Now().Truncate(time.Millisecond)
	w.Until = w.Since.Add(span).Truncate(time.Millisecond)
	err = c.ask(ctx, func(ctx context.Context) error {
		if err := c.sync(ctx); err != nil {
			return err
		}
		all := c.inForce()
		same := like(all, w)
		var full error
		if w.ID = newID(); len(same) > 0 {
			before = same[0]
			w.ID, same = before.ID, same[1:]
		} else {
			full = room(all, w)
		}
		if full != nil || dry {
			return full
		}
		note, err := w.note()
		if err != nil {
			return err
		}
		return c.put(ctx, append(gone(same), note))
	})
	return before, err
}

// room returns why there is no room for w, which takes no other one's place; nil if there is.
func room(all []*Control, w *Control) error {
	ofDomain := 0
	for _, n := range all {
		if n.Domain == w.Domain {
			ofDomain++
		}
	}
	switch {
	case len(all) >= Max:
		return errFullAll
	case w.Scoped && ofDomain >= MaxOfDomain:
		return errFullDomain
	case w.Scoped && len(all) >= MaxScoped:
		return errFullScoped
	}
	return nil
}

// like returns those that are of one kind with w about the same. There are several only where replicas that did not know of each other's
// put them in force: all obey the strongest, and they are replaced and lifted together.
func like(all []*Control, w *Control) []*Control {
	return slices.DeleteFunc(slices.Clone(all), func(n *Control) bool { return !n.about(w) })
}

// gone returns notes that take controls away.
func gone(all []*Control) (notes []backend.Note) {
	for _, n := range all {
		notes = append(notes, backend.Note{ID: n.ID, Ends: n.Until, Gone: true})
	}
	return notes
}

// Lift ends controls before their time, and those like them, and returns what they were. All of them must be in force, or none is
// lifted. With dry nothing is changed.
func (c *Controls) Lift(ctx context.Context, ids []string, dry bool) (lifted []*Control, err error) {
	err = c.ask(ctx, func(ctx context.Context) error {
		if err := c.sync(ctx); err != nil {
			return err
		}
		all := c.inForce()
		for _, id := range ids {
			i := slices.IndexFunc(all, func(n *Control) bool { return n.ID == id })
			if i < 0 {
				return fmt.Errorf("%w: %q", ErrUnknown, id)
			}
			if !slices.Contains(lifted, all[i]) {
				lifted = append(lifted, like(all, all[i])...)
			}
		}
		if dry {
			return nil
		}
		return c.put(ctx, gone(lifted))
	})
	return lifted, err
}

// inForce returns the controls in force, sorted by domain, entries, kind and ID.
func (c *Controls) inForce() []*Control {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.live(time.Now())
	slices.SortFunc(all, compare)
	return all
}

// put stores notes, and puts them in force here.
func (c *Controls) put(ctx context.Context, notes []backend.Note) error {
	at := make([]int64, len(notes))
	if c.config.Store != nil {
		var err error
		switch at, err = c.config.Store.Put(ctx, notes, Max); {
		case errors.Is(err, backend.ErrNotesFull):
			return errFullAll
		case err != nil:
			return fmt.Errorf("%w: %w", ErrStore, err)
		case len(at) != len(notes):
			return fmt.Errorf("%w: its answer is not understood", ErrStore)
		}
	}
	c.mu.Lock()
	for i := range notes {
		notes[i].At = at[i]
		if c.config.Store == nil && notes[i].Gone { // nobody puts it back
			delete(c.known, notes[i].ID)
			continue
		}
		c.learn(&notes[i])
	}
	c.build(time.Now())
	c.mu.Unlock()
	c.hurry()
	return nil
}

func errorOf(err error) error { return fmt.Errorf("%w: %w", ErrStore, err) }

// ask calls f, which may use the store, when nobody else does.
func (c *Controls) ask(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	select {
	case <-c.asking:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrStore, ctx.Err())
	}
	defer func() { c.asking <- struct{}{} }()
	return f(ctx)
}

// hurry has Run look after everything now.
func (c *Controls) hurry() {
	select {
	case c.early <- struct{}{}:
	default:
	}
}

// learn takes n over unless something later is known. c.mu is held.
func (c *Controls) learn(n *backend.Note) {
	if k, ok := c.known[n.ID]; ok && k.At > n.At {
		return
	}
	k := known{Note: *n}
	if !n.Gone {
		var err error
		if k.control, err = fromNote(n); err != nil {
			c.log.Warn("a control in the store cannot be read, and is not in force here", "error", err)
		}
	}
	c.known[n.ID] = k
}

// live returns the controls in force, in no particular order. c.mu is held.
func (c *Controls) live(now time.Time) []*Control {
	all := make([]*Control, 0, len(c.known))
	for _, k := range c.known {
		if k.control != nil && now.Before(k.Ends) {
			all = append(all, k.control)
		}
	}
	return all
}

// build replaces the table by one of what is in force. c.mu is held.
func (c *Controls) build(now time.Time) {
	all := c.live(now)
	slices.SortFunc(all, compare)
	c.table.Store(newTable(all))
	c.stale = false
}

// expire forgets what has ended, and returns when the next one ends, if there is one.
func (c *Controls) expire(now time.Time) (next time.Time, found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ended := false
	for id, k := range c.known {
		switch {
		case !now.Before(k.Ends):
			delete(c.known, id)
			ended = ended || k.control != nil
		case !found || k.Ends.Before(next):
			next, found = k.Ends, true
		}
	}
	if ended {
		c.build(now)
	}
	return next, found
}
