// Package replicated keeps tables of short texts that replicas share, each text under a key: a register in which the last write
// wins.
//
// A [Register] keeps the [Table] of one process in step with a [Store], which all replicas share. Each entry has a time, by the
// clock of the store. Of two entries under one key the later one wins, wherever they meet, and it expires no earlier than the one
// that it replaces. So entries may arrive in any order, and more than once. A register chooses the time of a change: later than that of
// all that it knows under the key. The store takes a change only from a register that has read what is there.
//
// A register asks the store for the entries that are new since a [Revision]. A store that has lost something does not know that
// revision. Then the register reads everything, and stores again the entries that the store lacks. An entry that was replaced does
// not return, because the entry that replaced it is stored again too.
//
// To take an entry away is to replace it with a tombstone: an entry that says that nothing is there. The tombstone of an entry with
// an end lasts until that end. Where there is no end, it lasts for [Lasts]. A register that was out of step for longer than that
// may hold entries whose tombstones are gone. So it stores nothing again, and drops what the store lacks.
//
// This package is optional: the core works without it.
package replicated

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
)

// Lasts is how long the tombstone of an entry without an end is kept.
const Lasts = 30 * 24 * time.Hour

// Store keeps the entries of all replicas that share it. Its methods are not called concurrently.
type Store interface {
	// Changes returns the entries that are new since a revision. Unless self is empty, this process counts as a replica from now
	// on: self is its name and, after a blank, what it says of itself.
	Changes(ctx context.Context, since Revision, self string) (Changes, error)
	// Put stores entries, in order. It returns since with the tag of the change. It returns [ErrFull] where there would be more
	// entries than there may be, and [ErrBehind] where since does not cover what is there, under one of the keys or as a whole. With
	// again they are entries that the store lacks: any number is stored, and a key that has changed after since is left as it is.
	// After an error some entries may have been stored.
	Put(ctx context.Context, since Revision, entries []Entry, again bool) (Revision, error)
	// Replicas returns the names of the replicas that asked in the last seconds, the latest last.
	Replicas(ctx context.Context) ([]string, error)
	// Leave removes this process from the replicas, and closes the connection.
	Leave(ctx context.Context)
}

// Table holds the entries of this process. A register calls its methods one at a time.
type Table interface {
	// Entry returns the entry under a key, or the zero value if there is none. It may leave out the Key.
	Entry(key string) Entry
	// Take puts an entry in the place of the one under its key. After an error there is no entry under that key.
	Take(e *Entry) error
	// Keys returns the keys of all entries.
	Keys() []string
	// Drop removes the entry under a key.
	Drop(key string)
	// Settle is called after entries were taken or dropped, before a caller hears of it, and now and then. It removes the entries
	// that expired before a time, in ms since the epoch.
	Settle(before int64)
}

// Config says what a register is made of.
type Config struct {
	Table  Table
	Store  Store         // nil keeps the entries only in this process
	What   string        // the entries, in the log: controls
	Says   func() string // what this process says of itself to the other replicas; if this is nil it is not one of them
	Failed error         // what errors of the store wrap
	Log    *slog.Logger
}

// Register keeps a table in step with a store. Its methods are safe for concurrent use.
type Register struct {
	config Config
	name   string        // of this process
	first  chan struct{} // closed once the table is in step with the store for the first time, or the store cannot be asked
	known  atomic.Bool   // the table has been in step with the store
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

// First is closed once the table is in step with the store for the first time, or asking the store has failed.
func (r *Register) First() <-chan struct{} { return r.first }

// Known reports whether the table has been in step with the store. Until then, entries of the store may be missing.
func (r *Register) Known() bool { return r.known.Load() }

// Now returns the time by the clock of the store, even while the store does not answer.
func (r *Register) Now() time.Time { return r.clock.now() }

// Replicas returns the names of the replicas that asked in the last seconds. Each may have a blank and what it says of itself
// behind its name.
func (r *Register) Replicas(ctx context.Context) (names []string, err error) {
	err = r.ask(ctx, func(ctx context.Context) error {
		names, err = r.config.Store.Replicas(ctx)
		return err
	})
	return names, err
}

// Sync brings the table in step with the store.
func (r *Register) Sync(ctx context.Context) error { return r.ask(ctx, r.sync) }

// Put brings the table in step with the store, and then stores the entries that decide returns, each with a time that is later than
// that of the entry that it replaces. It returns once the table has them. Its error wraps [ErrFull] if there is no room.
func (r *Register) Put(ctx context.Context, decide func() ([]Entry, error)) error {
	return r.ask(ctx, func(ctx context.Context) (err error) {
		for range putTries {
			if err = r.put(ctx, decide); !errors.Is(err, ErrBehind) {
				return err
			}
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
	now := r.Now().UnixMicro()
	for i := range entries {
		e := &entries[i]
		known := r.config.Table.Entry(e.Key) // which may be from a store whose clock was ahead
		e.Made, e.Expires = max(now, known.Made+1), later(e, known.Expires)
	}
	if r.config.Store != nil {
		if r.since, err = r.config.Store.Put(ctx, r.since, entries, false); err != nil {
			return r.failed(err)
		}
	}
	for i := range entries {
		r.take(&entries[i])
	}
	r.settle()
	return nil
}

// later returns when e expires, given when the entry that it replaces would have expired.
func later(e *Entry, before int64) int64 {
	if e.Expires == 0 {
		return 0
	}
	return max(e.Expires, before)
}

// failed returns the error that callers get for an error of the store.
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
