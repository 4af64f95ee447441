package controls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
)

// putBackAtOnce is how many notes are written back to the store in one call at most; fewer after an error, since the link may
// be slow.
const putBackAtOnce = 100

// syncTime is how long others wait who ask too, while a lot is read or written back.
const syncTime = storeTime / 2

// errUnfinished is the error of sync when there is more to do.
var errUnfinished = fmt.Errorf("%w: there are many, and not all are read yet: try again in a moment", ErrStore)

// poll asks the store for what is new, and returns when to do so again. While the store is away what is known holds.
func (c *Controls) poll(ctx context.Context) time.Duration {
	began := time.Now()
	err := c.ask(ctx, func(ctx context.Context) error {
		if err := c.sync(ctx); err != nil {
			return err
		}
		return c.unheard
	})
	if errors.Is(err, errUnfinished) {
		c.outage.Unfinished()
		return 0
	}
	if err == nil {
		if c.outage.Over() {
			c.log.Info("the controls are in step with the store again")
		}
		return max(0, pollEach-time.Since(began))
	}
	if ctx.Err() == nil && c.outage.Failed(began) {
		c.log.Warn("the controls cannot be kept in step with the store: those that are known hold until they end", "error", err)
	}
	return pollAfter
}

// reading is what a replica that reads all that the store has, to write back what it lacks, has found so far.
type reading struct {
	has map[string]int64 // ID → when the note was made
}

// sync learns what is new in the store. Where the store has lost something, because it began anew, another process has taken
// over, or it holds less than it should, all is read again, and what it lacks is written back; of two controls about the same
// the later one wins. What takes long is done in parts, so that others can ask too: then it returns [errUnfinished], and goes on
// where it was with the next call.
func (c *Controls) sync(ctx context.Context) error {
	if c.config.Store == nil {
		return nil
	}
	defer c.rebuild()
	for began := time.Now(); ; {
		if c.reading != nil && c.version.Revision == 0 {
			clear(c.reading.has) // what was written back in vain until now may be gone again
		}
		n, err := c.pull(ctx, c.version)
		switch {
		case err != nil:
			return err
		case c.lost(&n):
			c.version, c.reading = backend.Version{}, &reading{has: make(map[string]int64)}
			continue
		}
		c.take(&n)
		switch c.version = n.Version; {
		case n.More && time.Since(began) < syncTime:
		case n.More:
			return errUnfinished
		default:
			return c.settle(ctx, &n, began)
		}
	}
}

// settle has the store get back what it lacks, now that all that it has, of which n is the last part, was read.
func (c *Controls) settle(ctx context.Context, n *backend.Notes, began time.Time) error {
	for r := c.reading; r != nil; n.Lost = false {
		if n.Lost { // then it begins anew with what it is given next, and gets everything
			clear(r.has)
		}
		back := c.lacking(r.has, n.Version.Horizon)
		some := back[:min(len(back), c.atOnce)]
		horizon := c.horizon
		if len(some) < len(back) {
			horizon = 0 // comes with the last ones: what is older, and not there, is then known to be gone
		}
		if len(back) == 0 && horizon <= n.Version.Horizon && !n.Lost {
			break
		}
		if err := c.config.Store.PutBack(ctx, some, horizon); err != nil {
			c.atOnce = max(1, c.atOnce/4)
			return errorOf(err)
		}
		c.atOnce = min(putBackAtOnce, 2*c.atOnce)
		for i := range some {
			r.has[some[i].ID] = some[i].At
		}
		n.Version.Horizon = max(n.Version.Horizon, horizon)
		if time.Since(began) > syncTime {
			return errUnfinished
		}
	}
	c.reading = nil
	c.forget(n.Version.Horizon)
	return nil
}

// pull polls the store once.
func (c *Controls) pull(ctx context.Context, since backend.Version) (backend.Notes, error) {
	beat := time.Since(c.beaten) >= beatEach
	n, err := c.config.Store.Poll(ctx, since, beat)
	if err != nil && beat && ctx.Err() == nil { // what cannot be written to can perhaps be read
		beat, c.unheard = false, fmt.Errorf("%w: %w", ErrStore, err)
		n, err = c.config.Store.Poll(ctx, since, beat)
	}
	if err != nil {
		return n, fmt.Errorf("%w: %w", ErrStore, err)
	}
	if beat {
		c.beaten, c.unheard = time.Now(), nil
	}
	return n, nil
}

// lost reports whether the store, which has answered with n, may lack something that is known here.
func (c *Controls) lost(n *backend.Notes) bool {
	since := &c.version
	switch {
	case since.Revision == 0 && c.reading != nil:
		return false
	case since.Revision == 0: // then nothing was read since what is known was written back
		c.mu.Lock()
		defer c.mu.Unlock()
		return n.Lost || len(c.known) > 0
	case n.Version.Floor != since.Floor && since.Revision < n.Version.Floor: // what was lifted may have been forgotten unread
		return true
	}
	return n.Lost && c.reading == nil || n.Version.Epoch != since.Epoch || n.Version.Revision < since.Revision || n.Version.Run != since.Run
}

// take learns what is new. What is not later than the horizon, and was not known, was lifted long ago: whoever put it back was away.
func (c *Controls) take(n *backend.Notes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for i := range n.Changed {
		note := n.Changed[i]
		if c.reading != nil {
			c.reading.has[note.ID] = max(c.reading.has[note.ID], note.At)
		}
		if _, ok := c.known[note.ID]; !ok && !note.Gone && note.At <= c.horizon && now.Before(note.Ends) {
			note = backend.Note{ID: note.ID, At: note.At + 1, Ends: note.Ends, Gone: true}
		}
		c.learn(&note)
		c.stale = true
	}
}

// rebuild puts in force what was learnt.
func (c *Controls) rebuild() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stale {
		c.build(time.Now())
	}
}

// lacking returns what is known, has not ended, and is later than what a store has, whose notes were made at the given times;
// those that were lifted come last, the first ones first. What is not later than the store's horizon, and not there, it drops.
func (c *Controls) lacking(has map[string]int64, horizon int64) (back []backend.Note) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for id, k := range c.known {
		switch at, ok := has[id]; {
		case !now.Before(k.Ends) || ok && at >= k.At:
		case !ok && k.At <= horizon:
			delete(c.known, id)
			c.stale = true
		default:
			back = append(back, k.Note)
		}
	}
	slices.SortFunc(back, func(a, b backend.Note) int {
		if a.Gone != b.Gone {
			return map[bool]int{false: -1, true: 1}[a.Gone]
		}
		return cmp.Compare(a.At, b.At)
	})
	return back
}

// forget drops what was lifted by the horizon of the store, which is the horizon here from then on.
func (c *Controls) forget(horizon int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if horizon <= c.horizon {
		return
	}
	c.horizon = horizon
	for id, k := range c.known {
		if k.Gone && k.At <= horizon {
			delete(c.known, id)
		}
	}
}
