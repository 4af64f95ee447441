package replicated

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
)

// Intervals and timeouts of calls to the store.
const (
	pollEach  = 300 * time.Millisecond
	pollAfter = 500 * time.Millisecond // after an error
	storeTime = time.Second
	syncTime  = storeTime / 2          // time to read and store entries before other calls get their turn
	beatEach  = 2 * time.Second        // interval of heartbeats
	sweepEach = time.Minute            // interval of sweeps, and how long an expired entry stays, because clocks differ
	silentFor = 3 * time.Second        // errors are logged after this long
	leaveTime = 300 * time.Millisecond // timeout of Leave
)

const (
	storeAtOnce = 100         // entries stored between two checks of the time
	putTries    = 4           // attempts at a change that others change too
	repairEach  = time.Minute // interval of reading everything again because of unreadable values
)

// errUnfinished is the error of sync and storeLacking if they ran out of time.
var errUnfinished = errors.New("not all entries have been read yet: try again in a moment")

// follower is the synchronization state of a register.
type follower struct {
	since   Revision
	reading bool                // reading from the beginning
	lacks   map[string]struct{} // keys of entries that the store lacks or, while reading, that were not seen yet
	inSync  time.Time           // last time the table was in sync, by this process's clock
	changed bool                // entries were taken or dropped since the last Table.Settle

	beatSent   time.Time // time of the last successful heartbeat
	beatFailed error     // the heartbeat's error, although reading works

	outage throttle.Outage
	unread *throttle.Log

	spoiled  bool      // the store has unreadable values, which may have replaced entries of the table
	repaired time.Time // last time everything was read because of spoiled
}

// Run synchronizes the table with the store until ctx ends.
func (r *Register) Run(ctx context.Context) error {
	for swept := time.Now(); ; {
		wait, done := sweepEach, true
		if r.config.Store != nil {
			wait, done = r.poll(ctx)
		}
		if done {
			r.markFirst()
		}
		if time.Since(swept) >= sweepEach {
			swept = time.Now()
			_ = r.withStore(ctx, func(context.Context) error { // after an error, sweep again in a minute
				r.config.Table.Settle(r.sweeps())
				return nil
			})
		}
		select {
		case <-ctx.Done():
			r.leave(ctx)
			return nil
		case <-time.After(wait):
		}
	}
}

// markFirst closes r.first once.
func (r *Register) markFirst() {
	select {
	case <-r.first:
	default:
		close(r.first)
	}
}

func (r *Register) leave(ctx context.Context) {
	if r.config.Store == nil {
		return
	}
	r.turn <- struct{}{} // never ended, so that no later call uses the store
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	r.config.Store.Leave(ctx)
}

// poll synchronizes the table with the store, and stores entries that the store lacks. It returns the time until the next call,
// and whether everything was read. While the store fails, the table does not change.
func (r *Register) poll(ctx context.Context) (wait time.Duration, done bool) {
	began := time.Now()
	err := r.withStore(ctx, func(ctx context.Context) error {
		if r.spoiled && began.Sub(r.repaired) >= repairEach {
			r.since, r.repaired = Revision{}, began
		}
		if err := r.sync(ctx); err != nil {
			return err
		}
		if err := r.storeLacking(ctx); err != nil {
			return err
		}
		return r.beatFailed
	})
	if errors.Is(err, errUnfinished) {
		r.outage.Unfinished()
		return 0, !r.reading
	}
	if err == nil {
		if r.outage.Over() {
			r.config.Log.Info("in sync with the backend again", "what", r.config.What)
		}
		return max(0, pollEach-time.Since(began)), true
	}
	if ctx.Err() == nil && r.outage.Failed(began) {
		r.config.Log.Warn("cannot sync with Redis; using the last known state", "what", r.config.What, "error", err)
	}
	return pollAfter, true
}

// sync takes new entries from the store. Its error wraps errUnfinished if it ran out of time.
func (r *Register) sync(ctx context.Context) error {
	if r.config.Store == nil {
		return nil
	}
	defer r.settle()
	for began := time.Now(); ; {
		c, err := r.pull(ctx)
		if err != nil {
			return r.failed(err)
		}
		if !c.Incremental {
			r.beginReading()
		}
		for i := range c.Entries {
			r.merge(&c.Entries[i], c.Now)
		}
		for _, what := range c.Unread {
			r.spoiled = true
			r.cannotRead(fmt.Errorf("%s: too large, or not written by a server", what))
		}
		if r.since = c.Revision; !c.More {
			r.endReading()
			return nil
		}
		if time.Since(began) > syncTime {
			return r.failed(errUnfinished)
		}
	}
}

// pull reads new entries from the store, with a heartbeat if one is due.
func (r *Register) pull(ctx context.Context) (Changes, error) {
	self := ""
	if r.config.Status != nil && time.Since(r.beatSent) >= beatEach {
		self = r.name + " " + r.config.Status()
	}
	sent := time.Now()
	c, err := r.config.Store.Changes(ctx, r.since, self)
	switch {
	case err == nil && self != "":
		r.beatSent, r.beatFailed = sent, nil
	case err != nil && self != "" && ctx.Err() == nil: // the store may be read-only
		r.beatFailed = r.failed(err)
		sent = time.Now()
		c, err = r.config.Store.Changes(ctx, r.since, "")
	}
	if err == nil {
		r.clock.set(c.Now, sent)
	}
	return c, err
}

// beginReading starts reading from the beginning. The store may lack any entry of the table.
func (r *Register) beginReading() {
	r.reading, r.lacks = true, make(map[string]struct{})
	for _, key := range r.config.Table.Keys() {
		r.lacks[key] = struct{}{}
	}
}

// endReading ends reading. Entries that the store lacks will be stored again, or are dropped if this process was out of sync for
// longer than [Lasts].
func (r *Register) endReading() {
	if r.reading && time.Now().Round(0).Sub(r.inSync) > Lasts {
		for key := range r.lacks {
			r.config.Table.Drop(key)
			r.changed = true
		}
		r.lacks = nil
	}
	r.synced.Store(true)
	r.reading, r.spoiled, r.inSync = false, r.spoiled && !r.reading, time.Now().Round(0)
}

// merge takes an entry of the store unless the table has a later one.
func (r *Register) merge(e *Entry, now int64) {
	if expired(e, now) {
		return
	}
	known := r.config.Table.Entry(e.Key)
	if known.Created > e.Created { // the store lost the later entry, or an earlier one replaced it
		if r.lacks == nil {
			r.lacks = make(map[string]struct{})
		}
		r.lacks[e.Key] = struct{}{}
		return
	}
	expires := later(e, known.Expires)
	if expires == e.Expires {
		delete(r.lacks, e.Key)
	}
	if known.Created == e.Created && known.Expires == expires {
		return
	}
	e.Expires = expires
	r.take(e)
}

// expired reports whether e expired at least sweepEach before now, in µs; the margin covers differences of clocks.
func expired(e *Entry, now int64) bool {
	return e.Expires > 0 && e.Expires < now/1000-sweepEach.Milliseconds()
}

// take puts an entry into the table.
func (r *Register) take(e *Entry) {
	r.changed = true
	if err := r.config.Table.Take(e); err != nil {
		r.cannotRead(err)
	}
}

// cannotRead logs an unreadable value of the store.
func (r *Register) cannotRead(err error) {
	r.unread.Through(r.config.Log, "").Warn("an entry in the backend cannot be read and is skipped", "what", r.config.What, "error", err)
}

func (r *Register) settle() {
	if r.changed {
		r.changed = false
		r.config.Table.Settle(r.sweeps())
	}
}

// sweeps returns the time, in ms since the epoch, before which expired entries are forgotten.
func (r *Register) sweeps() int64 { return r.Now().Add(-sweepEach).UnixMilli() }

// storeLacking stores the entries that the store lacks. Its error wraps errUnfinished if it ran out of time.
func (r *Register) storeLacking(ctx context.Context) error {
	now := r.Now().UnixMicro()
	for began := time.Now(); len(r.lacks) > 0; {
		if time.Since(began) > syncTime {
			return r.failed(errUnfinished)
		}
		var some []Entry
		for key := range r.lacks {
			if len(some) == storeAtOnce {
				break
			}
			if e := r.config.Table.Entry(key); e.Created > 0 && !expired(&e, now) {
				e.Key = key
				some = append(some, e)
			} else {
				delete(r.lacks, key)
			}
		}
		var err error
		if r.since, err = r.config.Store.Put(ctx, r.since, some, true); err != nil {
			return r.failed(err)
		}
		for i := range some {
			delete(r.lacks, some[i].Key)
		}
	}
	r.lacks = nil
	return nil
}
