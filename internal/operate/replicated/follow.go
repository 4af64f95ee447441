package replicated

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
)

// How often the store is asked, and how long that may take.
const (
	pollEach  = 300 * time.Millisecond
	pollAfter = 500 * time.Millisecond // after an error
	storeTime = time.Second
	syncTime  = storeTime / 2          // after which other calls may ask too, though there is more to read or to store again
	beatEach  = 2 * time.Second        // how often this process says that it is one of the replicas
	sweepEach = time.Minute            // between two sweeps, and how long an expired entry stays, since clocks differ
	silentFor = 3 * time.Second        // errors are logged once they have lasted so long
	leaveTime = 300 * time.Millisecond // how long Leave may take at the end
)

const (
	storeAtOnce = 100         // entries are stored again before the time is checked
	putTries    = 4           // of a change, while others change the same
	repairEach  = time.Minute // how often everything is read because an entry was spoiled
)

// errUnfinished is the error of sync and storeLacking when there is more to do.
var errUnfinished = errors.New("not all entries have been read yet: try again in a moment")

// follower is the state of a register towards its store.
type follower struct {
	since   Revision
	reading bool                // everything is being read again
	lacks   map[string]struct{} // keys of the entries that the store lacks or, while everything is read, that were not seen in it yet
	inStep  time.Time           // when the table was last in step with the store, by this process' clock
	changed bool                // an entry was taken or dropped since the last Table.Settle

	noted   time.Time // when the store last noted this process as a replica
	unnoted error     // why the store cannot note it, though it can be read

	outage throttle.Outage
	unread *throttle.Log

	spoiled  bool      // the store holds something in the place of what may have been an entry of the table
	repaired time.Time // when everything was last read because of that
}

// Run keeps the table in step with the store, until ctx ends.
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
			_ = r.ask(ctx, func(context.Context) error { // else in a minute
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

// markFirst closes r.first, if it is not closed.
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
	<-r.asking // and never returned: no later call may ask
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	r.config.Store.Leave(ctx)
}

// poll brings the table in step with the store, and stores again what the store lacks. It returns when to do so the next time, and
// whether everything is read. While the store does not answer, the table stays as it is.
func (r *Register) poll(ctx context.Context) (wait time.Duration, done bool) {
	began := time.Now()
	err := r.ask(ctx, func(ctx context.Context) error {
		if r.spoiled && began.Sub(r.repaired) >= repairEach {
			r.since, r.repaired = Revision{}, began
		}
		if err := r.sync(ctx); err != nil {
			return err
		}
		if err := r.storeLacking(ctx); err != nil {
			return err
		}
		return r.unnoted
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

// sync takes the new entries of the store. Its error wraps errUnfinished if there are more than it had time for.
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
		if !c.Known {
			r.beginReading()
		}
		for i := range c.Entries {
			r.learn(&c.Entries[i], c.Now)
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

// pull asks the store for its new entries.
func (r *Register) pull(ctx context.Context) (Changes, error) {
	self := ""
	if r.config.Says != nil && time.Since(r.noted) >= beatEach {
		self = r.name + " " + r.config.Says()
	}
	sent := time.Now()
	c, err := r.config.Store.Changes(ctx, r.since, self)
	switch {
	case err == nil && self != "":
		r.noted, r.unnoted = sent, nil
	case err != nil && self != "" && ctx.Err() == nil: // a store that cannot be written to can perhaps be read
		r.unnoted = r.failed(err)
		sent = time.Now()
		c, err = r.config.Store.Changes(ctx, r.since, "")
	}
	if err == nil {
		r.clock.set(c.Now, sent)
	}
	return c, err
}

// beginReading begins to read everything in the store, which may lack some entries of the table.
func (r *Register) beginReading() {
	r.reading, r.lacks = true, make(map[string]struct{})
	for _, key := range r.config.Table.Keys() {
		r.lacks[key] = struct{}{}
	}
}

// endReading ends that. The entries that the store lacks are to be stored again, or dropped if this process was out of step for too
// long.
func (r *Register) endReading() {
	if r.reading && time.Now().Round(0).Sub(r.inStep) > Lasts {
		for key := range r.lacks {
			r.config.Table.Drop(key)
			r.changed = true
		}
		r.lacks = nil
	}
	r.known.Store(true)
	r.reading, r.spoiled, r.inStep = false, r.spoiled && !r.reading, time.Now().Round(0)
}

// learn takes an entry of the store, unless the table has a later one.
func (r *Register) learn(e *Entry, now int64) {
	if expired(e, now) {
		return
	}
	known := r.config.Table.Entry(e.Key)
	if known.Made > e.Made { // the store lacks the later one: it has lost that, or an earlier one was put in its place
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
	if known.Made == e.Made && known.Expires == expires {
		return
	}
	e.Expires = expires
	r.take(e)
}

// expired reports whether e has expired at a time in µs, long enough ago that the difference of clocks does not matter.
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

// cannotRead logs what the store holds in place of an entry.
func (r *Register) cannotRead(err error) {
	if omitted, ok := r.unread.Allow(""); ok {
		r.config.Log.Warn("an entry in the backend cannot be read and is skipped", "what", r.config.What, "error", err, "omitted", omitted)
	}
}

func (r *Register) settle() {
	if r.changed {
		r.changed = false
		r.config.Table.Settle(r.sweeps())
	}
}

// sweeps returns the time, in ms since the epoch, before which an entry must have expired to be forgotten.
func (r *Register) sweeps() int64 { return r.Now().Add(-sweepEach).UnixMilli() }

// storeLacking stores the entries that the store lacks. Its error wraps errUnfinished if there are more than it had time for.
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
			if e := r.config.Table.Entry(key); e.Made > 0 && !expired(&e, now) {
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
