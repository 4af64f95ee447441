// Package replicated keeps tables of short texts that replicas share, each text under a key.
//
// A [Register] keeps the [Table] of one process in step with a [Store]. Of two entries under one key the later one counts, by the clock
// of the store, wherever the two meet; and it expires no earlier than the other one would have. So it does not matter in which order, or
// how often, entries are told. A register asks the store for what is new. A store that has lost something, whatever it was, does not know
// the revision that the register has read: then the register reads everything, and puts back what it knows and the store lacks. What was
// replaced does not return, since that by which it was replaced is still known, or is put back.
//
// What has no end cannot be kept like this forever once it is taken away. So a register that was not in step for as long as such an entry
// stays ([Lasts]) puts nothing back: it drops what the store lacks.
package replicated

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/throttle"
)

// Lasts is how long an entry stays by which one without an end was taken away.
const Lasts = 30 * 24 * time.Hour

// Store keeps the entries of all replicas that share it. Its methods are not called concurrently.
type Store interface {
	// Changes returns what is new since a revision. Unless self is empty, it is the name of this process among the replicas from now on,
	// and, after a blank, what it says of itself.
	Changes(ctx context.Context, since Revision, self string) (Changes, error)
	// Put stores entries, in order, and fills in when they were made. One that has such a time already is put back. It returns since with
	// the tag of the change, [ErrFull] where there would be more than most, of which 0 is any number, and [ErrFellBack]
	// where the store does not know since. After an error some may have been stored.
	Put(ctx context.Context, since Revision, entries []Entry, most int) (Revision, error)
	// Replicas returns the names of the replicas that were here lately, the latest last.
	Replicas(ctx context.Context) ([]string, error)
	// Leave takes this process off the replicas, and ends the connection.
	Leave(ctx context.Context)
}

// Table is what the entries of this process are kept in. A register calls its methods one at a time.
type Table interface {
	// Entry returns the entry under a key, whose Key may be left out; the zero value if there is none.
	Entry(key string) Entry
	// Take puts an entry in the place of that under its key. If it cannot be read there is none under that key.
	Take(e *Entry) error
	// Keys returns the keys of all entries.
	Keys() []string
	// Drop removes the entry under a key.
	Drop(key string)
	// Settle is called after entries were taken or dropped, before that is reported, and now and then. It removes the entries that have
	// expired before a time, in ms since the epoch.
	Settle(before int64)
}

// Config is what a register is made of.
type Config struct {
	Table  Table
	Store  Store         // nil keeps the entries in this process alone
	What   string        // the entries, in the log: controls
	Most   int           // entries in the store; 0 is any number
	Says   func() string // what this process says of itself among the replicas; it is none of them if this is nil
	Failed error         // what errors of the store wrap
	Log    *slog.Logger
}

// Register keeps a table in step with a store. Its methods are safe for concurrent use.
type Register struct {
	config Config
	name   string        // of this process
	first  chan struct{} // closed once the table is in step with the store for the first time, or the store cannot be asked
	clock  clock

	asking chan struct{} // has an element while no call asks the store; the goroutine that has taken it may use what follows
	follower
}

// New returns a register.
func New(c Config) *Register {
	r := &Register{config: c, name: rand.Text()[:12], first: make(chan struct{}), asking: make(chan struct{}, 1)}
	if host, err := os.Hostname(); err == nil {
		r.name = host + "/" + r.name
	}
	r.outage, r.unread = throttle.After(silentFor), throttle.Every(time.Minute)
	r.asking <- struct{}{}
	return r
}

// Shared reports whether there is a store.
func (r *Register) Shared() bool { return r.config.Store != nil }

// Name returns the name of this process among the replicas.
func (r *Register) Name() string { return r.name }

// First is closed once the table is in step with the store for the first time, or the store cannot be asked.
func (r *Register) First() <-chan struct{} { return r.first }

// Now returns the time by the clock of the store, also while that cannot be asked.
func (r *Register) Now() time.Time { return r.clock.now() }

// Replicas returns the names of the replicas that were here lately, each with what it says of itself behind a blank.
func (r *Register) Replicas(ctx context.Context) (names []string, err error) {
	err = r.ask(ctx, func(ctx context.Context) error {
		names, err = r.config.Store.Replicas(ctx)
		return err
	})
	return names, err
}

// Sync brings the table in step with the store.
func (r *Register) Sync(ctx context.Context) error { return r.ask(ctx, r.sync) }

// Put brings the table in step with the store, and stores the entries that decide then returns, which are made now. It returns once the
// table has them. Its error wraps [ErrFull] if there is no room.
func (r *Register) Put(ctx context.Context, decide func() ([]Entry, error)) error {
	return r.ask(ctx, func(ctx context.Context) error {
		err := r.put(ctx, decide)
		if errors.Is(err, ErrFellBack) { // after it was in step: once more
			err = r.put(ctx, decide)
		}
		return err
	})
}

func (r *Register) put(ctx context.Context, decide func() ([]Entry, error)) error {
	if err := r.sync(ctx); err != nil {
		return err
	}
	entries, err := decide()
	if err != nil || len(entries) == 0 {
		return err
	}
	for i := range entries {
		e := &entries[i]
		e.Made, e.Expires = MadeNow, later(e, r.config.Table.Entry(e.Key).Expires) // the store may have lost what it replaces
	}
	if err := r.store(ctx, entries); err != nil {
		return r.failed(err)
	}
	for i := range entries {
		r.take(&entries[i])
	}
	r.settle()
	return nil
}

// store stores entries that are made now. Without a store the times are those of this process.
func (r *Register) store(ctx context.Context, entries []Entry) (err error) {
	if r.config.Store != nil {
		r.since, err = r.config.Store.Put(ctx, r.since, entries, r.config.Most)
		return err
	}
	for i := range entries {
		entries[i].Made = max(time.Now().UnixMicro(), r.config.Table.Entry(entries[i].Key).Made+1)
	}
	return nil
}

// later returns when e expires, given when that which it takes the place of would have.
func later(e *Entry, before int64) int64 {
	if e.Expires == 0 {
		return 0
	}
	return max(e.Expires, before)
}

// failed returns an error of the store as callers get it.
func (r *Register) failed(err error) error {
	if errors.Is(err, ErrFull) {
		return err
	}
	return fmt.Errorf("%w: %w", r.config.Failed, err)
}

// ask calls f, which may use the store, when no other call does.
func (r *Register) ask(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	select {
	case <-r.asking:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", r.config.Failed, ctx.Err())
	}
	defer func() { r.asking <- struct{}{} }()
	return f(ctx)
}
