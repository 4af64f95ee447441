// Package replicated shares tables of short texts by key among replicas. A table is a last-writer-wins register.
//
// A [Register] synchronizes the [Table] of one process with a [Store] shared by all replicas. Each entry has a time by the store's
// clock. Of two entries with the same key, the later one wins wherever they meet, and it expires no earlier than the other. So entries
// may arrive in any order and repeatedly. A register gives a change a later time than any that it knows for the key. The store accepts
// a change only from a register that has read the current entry.
//
// A register asks the store for entries that are new since a [Revision]. A store that has lost data does not know the revision. Then
// the register reads everything, and stores the entries that the store lacks. Replaced entries do not return, because their
// replacements are stored again too.
//
// An entry is deleted by replacing it with a tombstone, an empty entry. The tombstone lasts until the end of the deleted entry or, if
// it had none, for [Lasts]. A register that was out of sync for longer may hold entries whose tombstones are gone. So it does not store
// entries again, and drops those that the store lacks.
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

// Lasts is the lifetime of the tombstone of an entry without an end.
const Lasts = 30 * 24 * time.Hour

// Store holds the entries of all replicas. Its methods are not called concurrently.
type Store interface {
	// Changes returns the entries that are new since a revision. Unless self is empty, the call is a heartbeat of this replica:
	// self is its name and, after a blank, its description.
	Changes(ctx context.Context, since Revision, self string) (Changes, error)
	// Put stores entries in order, and returns since with the tag of the change. The error is [ErrFull] if there would be too many
	// entries, and [ErrBehind] if one of the keys changed after since, or the store does not know since. With again, the entries are
	// ones that the store lacks: their number is not limited, and a key that changed after since is skipped. After an error, some
	// entries may have been stored.
	Put(ctx context.Context, since Revision, entries []Entry, again bool) (Revision, error)
	// Replicas returns the names of replicas with recent heartbeats, latest last, each with its description.
	Replicas(ctx context.Context) ([]string, error)
	// Leave removes this process from the replicas, and closes the connection.
	Leave(ctx context.Context)
}

// Table holds the entries of this process. Its methods are not called concurrently.
type Table interface {
	// Entry returns the entry with a key, or the zero value. The Key may be missing.
	Entry(key string) Entry
	// Take replaces the entry with the same key. After an error, the key has no entry.
	Take(e *Entry) error
	// Keys returns the keys of all entries.
	Keys() []string
	// Drop removes the entry with a key.
	Drop(key string)
	// Settle is called after entries were taken or dropped, before callers are notified, and from time to time. It removes
	// entries that expired before a time, in ms since the epoch.
	Settle(before int64)
}

// Config configures a register.
type Config struct {
	Table  Table
	Store  Store         // nil keeps entries only in this process
	What   string        // the entries' name in the log, such as controls
	Status func() string // describes this process to other replicas; nil sends no heartbeats
	Failed error         // wrapped by errors of the store
	Log    *slog.Logger
}

// Register synchronizes a table with a store. Its methods are safe for concurrent use.
type Register struct {
	config Config
	name   string        // of this replica
	first  chan struct{} // closed after the first synchronization, or after the store has failed
	synced atomic.Bool   // set after the first synchronization
	clock  clock

	turn chan struct{} // full while the store and follower are in use
	follower
}

// New returns a register.
func New(c Config) *Register {
	r := &Register{config: c, name: rand.Text()[:12], first: make(chan struct{}), turn: make(chan struct{}, 1)}
	if host, err := os.Hostname(); err == nil {
		r.name = host + "/" + r.name
	}
	r.outage, r.unread = throttle.After(silentFor), throttle.Every(time.Minute)
	return r
}

// Shared reports whether the register has a store.
func (r *Register) Shared() bool { return r.config.Store != nil }

// Name returns the name of this replica.
func (r *Register) Name() string { return r.name }

// First returns a channel that is closed after the first synchronization, or after the store has failed.
func (r *Register) First() <-chan struct{} { return r.first }

// Synced reports whether the register has synchronized with the store. Until then, entries of the store may be missing.
func (r *Register) Synced() bool { return r.synced.Load() }

// Now returns the time by the store's clock, even while the store fails.
func (r *Register) Now() time.Time { return r.clock.now() }

// Replicas returns the names of replicas with recent heartbeats. A blank and the replica's description may follow each name.
func (r *Register) Replicas(ctx context.Context) (names []string, err error) {
	err = r.withStore(ctx, func(ctx context.Context) error {
		names, err = r.config.Store.Replicas(ctx)
		return err
	})
	return names, err
}

// Sync synchronizes the table with the store.
func (r *Register) Sync(ctx context.Context) error { return r.withStore(ctx, r.sync) }

// Put synchronizes the table with the store, and then stores the entries that decide returns, each with a later time than the
// replaced entry. It returns once the table has them. decide may be called several times. The error wraps [ErrFull] if there is no
// room.
func (r *Register) Put(ctx context.Context, decide func() ([]Entry, error)) error {
	return r.withStore(ctx, func(ctx context.Context) (err error) {
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
		known := r.config.Table.Entry(e.Key) // the store's clock may have been ahead when this entry was made
		e.Created, e.Expires = max(now, known.Created+1), later(e, known.Expires)
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

// later returns the expiry of e if it replaces an entry that expires at before.
func later(e *Entry, before int64) int64 {
	if e.Expires == 0 {
		return 0
	}
	return max(e.Expires, before)
}

// failed wraps an error of the store for callers.
func (r *Register) failed(err error) error {
	if errors.Is(err, ErrFull) {
		return err
	}
	return fmt.Errorf("%w: %w", r.config.Failed, err)
}

// withStore calls f while nothing else uses the store.
func (r *Register) withStore(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", r.config.Failed, ctx.Err())
	}
	defer func() { <-r.turn }()
	return f(ctx)
}
