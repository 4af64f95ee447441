package tenants

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/throttle"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
)

// How often the store is asked, and how long that may take.
const (
	pollEach  = 300 * time.Millisecond
	pollAfter = 500 * time.Millisecond // after an error
	storeTime = time.Second
	silentFor = 3 * time.Second // errors are logged if they last so long
)

// MaxAtOnce is how many tenants [Tenants.Put] takes.
const MaxAtOnce = 500

// SharedStore keeps tenants for all replicas that share it. Its methods are not called concurrently.
type SharedStore interface {
	// Changes returns what is new since a version, in parts.
	Changes(ctx context.Context, since backend.Version) (backend.RecordChanges, error)
	// Put stores records, at most [MaxAtOnce], and returns the text that each had before, "" if there was none. With back only
	// those are stored that the store has not got. It returns [backend.ErrRecordsFull] where there would be more than most,
	// and without back [backend.ErrRecordsLost] where the store has lost its records, or never had any.
	Put(ctx context.Context, records []backend.Record, most int, back bool) (before []string, err error)
	// Leave ends the connection.
	Leave()
}

// Errors of [Tenants.Put].
var (
	ErrFull = fmt.Errorf("there are %d tenants, which is the most there may be", MaxTenants)
	// ErrNoStore is the error of a change where no store is shared.
	ErrNoStore = errors.New("no table of tenants can be changed here: with TENANTS_REDIS=true, and BACKEND_TYPE=redis, " +
		"replicas share one in Redis; what is in TENANTS_FILE is changed in the file, which is read again by itself")
	// ErrStore is wrapped by errors of the store. What was to be changed may have been changed.
	ErrStore = errors.New("asking the store of the tenants")
)

// follower is what is needed to keep in step with the store.
type follower struct {
	asking  chan struct{}   // has an element while nobody asks the store; who has taken it may use what follows
	version backend.Version // of what is known
	epoch   string          // of the table in use
	filling *table          // what was read so far of a store that is read anew; nil if none is
	outage  throttle.Outage // of the store
	unread  bool            // so is that a record cannot be read
}

// String names the task.
func (t *Tenants) String() string { return "tenants" }

// Run keeps the table in step with the store, until ctx ends.
func (t *Tenants) Run(ctx context.Context) error {
	for first := true; ; first = false {
		wait := time.Hour
		if t.config.Store != nil {
			wait = t.poll(ctx)
		}
		if first {
			close(t.first)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			if t.config.Store != nil {
				<-t.asking // for good
				t.config.Store.Leave()
			}
			return nil
		case <-timer.C:
		}
	}
}

// poll learns what is new in the store, and returns when to do so again. While the store is away what is known holds.
func (t *Tenants) poll(ctx context.Context) time.Duration {
	began := time.Now()
	var err error
	for more := true; more && err == nil; {
		err = t.ask(ctx, func(ctx context.Context) (err error) {
			more, err = t.step(ctx)
			return err
		})
	}
	if err == nil {
		if t.outage.Over() {
			t.log.Info("the tenants are in step with the store again")
		}
		return max(0, pollEach-time.Since(began))
	}
	if ctx.Err() == nil && t.outage.Failed(began) {
		t.log.Warn("the tenants cannot be kept in step with the store: those that are known stay", "error", err)
	}
	return pollAfter
}

// ask calls f, which may use the store, when nobody else does.
func (t *Tenants) ask(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	select {
	case <-t.asking:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrStore, ctx.Err())
	}
	defer func() { t.asking <- struct{}{} }()
	return f(ctx)
}

// step learns one part of what is new, and reports whether there is more. A store that is new, or of another epoch, is read
// into a table of its own, which takes the place of the other one when it is whole.
func (t *Tenants) step(ctx context.Context) (more bool, err error) {
	c, err := t.config.Store.Changes(ctx, t.version)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrStore, err)
	}
	if c.Lost {
		return false, t.restore(ctx)
	}
	if c.Anew {
		t.filling = newTable(t.seed)
	}
	into := t.filling
	if into == nil {
		into = t.shared.Load()
	}
	for i := range c.Changed {
		t.learn(into, &c.Changed[i])
	}
	t.version = c.Version
	if !c.More && t.filling != nil {
		if known := t.shared.Load(); known.len() > 0 && t.epoch != c.Version.Epoch { // somebody is putting back what was lost
			if err := t.putBack(context.WithoutCancel(ctx), known); err != nil {
				return false, fmt.Errorf("%w: %w", ErrStore, err)
			}
			t.epoch = c.Version.Epoch
			return true, nil
		}
		t.epoch = c.Version.Epoch
		t.filling.settle()
		t.shared.Store(t.filling)
		t.log.Info("tenants read from the store", "tenants", t.filling.len())
		t.filling = nil
		t.warn()
	}
	return c.More, nil
}

// learn takes over a record.
func (t *Tenants) learn(into *table, r *backend.Record) {
	if r.Gone {
		into.unset([]byte(r.Name))
		return
	}
	e, err := parseText(r.Text)
	if err != nil || ValidateName(r.Name) != nil {
		t.config.Event(Unread)
		if !t.unread {
			t.unread = true
			t.log.Warn("a tenant in the store cannot be read, and is not in the table; further ones are not logged", "error", err)
		}
		into.unset([]byte(r.Name))
		return
	}
	into.set([]byte(r.Name), e.raw([]byte(e.Plan)))
}

// restore puts back what is known into a store that has lost it.
func (t *Tenants) restore(ctx context.Context) error {
	t.version, t.filling = backend.Version{}, nil
	known := t.shared.Load()
	if known == nil { // there never was anything
		t.shared.Store(newTable(t.seed))
		return nil
	}
	if known.len() == 0 {
		return nil
	}
	t.log.Warn("the store has lost the tenants, which are put back", "tenants", known.len())
	return t.putBack(context.WithoutCancel(ctx), known) // a million takes longer than a question may
}

// putBack stores tenants that the store has not got.
func (t *Tenants) putBack(ctx context.Context, known *table) error {
	var some []backend.Record
	put := func() error {
		if len(some) == 0 {
			return nil
		}
		_, err := t.config.Store.Put(ctx, some, MaxTenants, true)
		some = some[:0]
		return err
	}
	for i := range shards {
		var err error
		known.each(i, func(name string, e Entry) {
			if some = append(some, backend.Record{Name: name, Text: e.text()}); len(some) == MaxAtOnce && err == nil {
				err = put()
			}
		})
		if err == nil {
			err = put()
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrStore, err)
		}
	}
	return nil
}

// Change is what is to be said of a tenant from now on.
type Change struct {
	Tenant string
	Entry  *Entry // nil if nothing is
}

// Put changes tenants, at most [MaxAtOnce], in the store, and returns what it said of each before; nil if nothing. It
// returns once this process obeys. With dry nothing is changed.
func (t *Tenants) Put(ctx context.Context, changes []Change, dry bool) (before []*Entry, err error) {
	if t == nil || t.config.Store == nil {
		return nil, ErrNoStore
	}
	records, err := recordsOf(changes)
	if err != nil {
		return nil, err
	}
	if err := t.ask(ctx, t.catchUp); err != nil { // also so that what the store has lost is put back first
		return nil, err
	}
	before = make([]*Entry, len(changes))
	if dry {
		for i, c := range changes {
			if e, ok := t.shared.Load().find([]byte(c.Tenant)); ok {
				before[i] = &e
			}
		}
		return before, nil
	}
	err = t.ask(ctx, func(ctx context.Context) error {
		texts, err := t.store(ctx, records)
		if err != nil {
			return err
		}
		for i, text := range texts {
			if e, err := parseText(text); err == nil {
				before[i] = &e
			}
		}
		return t.catchUp(ctx)
	})
	return before, err
}

// recordsOf returns changes as the store takes them.
func recordsOf(changes []Change) ([]backend.Record, error) {
	records := make([]backend.Record, len(changes))
	for i, c := range changes {
		if err := ValidateName(c.Tenant); err != nil {
			return nil, err
		}
		records[i] = backend.Record{Name: c.Tenant, Gone: c.Entry == nil}
		if c.Entry == nil {
			continue
		}
		if err := c.Entry.Validate(); err != nil {
			return nil, err
		}
		records[i].Text = c.Entry.text()
	}
	return records, nil
}

// store stores records, after what the store has lost, and returns the texts before.
func (t *Tenants) store(ctx context.Context, records []backend.Record) ([]string, error) {
	texts, err := t.config.Store.Put(ctx, records, MaxTenants, false)
	if errors.Is(err, backend.ErrRecordsLost) { // or there never were any
		if _, err = t.config.Store.Put(ctx, nil, MaxTenants, true); err == nil {
			err = t.putBack(context.WithoutCancel(ctx), t.shared.Load())
		}
		if err == nil {
			texts, err = t.config.Store.Put(ctx, records, MaxTenants, false)
		}
	}
	switch {
	case errors.Is(err, backend.ErrRecordsFull):
		return nil, ErrFull
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrStore, err)
	case len(texts) != len(records):
		return nil, fmt.Errorf("%w: its answer is not understood", ErrStore)
	}
	return texts, nil
}

// catchUp learns all that is new.
func (t *Tenants) catchUp(ctx context.Context) error {
	for {
		if more, err := t.step(ctx); !more || err != nil {
			return err
		}
	}
}

// text returns e as the store has it: plan, requests or -, end in seconds since the epoch or -.
func (e *Entry) text() string {
	requests, until := "-", "-"
	if e.Numbered {
		requests = strconv.FormatUint(uint64(e.Requests), 10)
	}
	if !e.Until.IsZero() {
		until = strconv.FormatInt(e.Until.Unix(), 10)
	}
	return e.Plan + " " + requests + " " + until
}

var errText = errors.New("want plan, requests_per_unit or -, and an end in seconds since 1970 or -")

// parseText reads what text writes.
func parseText(text string) (e Entry, err error) {
	words := strings.Split(text, " ")
	if len(words) != 3 {
		return e, errText
	}
	e.Plan = words[0]
	if words[1] != "-" {
		n, err := strconv.ParseUint(words[1], 10, 32)
		if err != nil {
			return e, errText
		}
		e.Requests, e.Numbered = uint32(n), true
	}
	if words[2] != "-" {
		n, err := strconv.ParseInt(words[2], 10, 64)
		if err != nil || n <= 0 {
			return e, errText
		}
		e.Until = time.Unix(n, 0)
	}
	return e, e.Validate()
}
