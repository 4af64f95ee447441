package controls

import (
	"context"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
)

// putBackAtOnce is how many notes are written back to the store in one call.
const putBackAtOnce = 100

// poll asks the store for what is new, and returns when to do so again. While the store is away what is known holds.
func (c *Controls) poll(ctx context.Context) time.Duration {
	began := time.Now()
	err := c.ask(ctx, func(ctx context.Context) error {
		if err := c.sync(ctx); err != nil {
			return err
		}
		if err := c.tell(ctx); err != nil {
			return err
		}
		if err := c.hear(ctx); err != nil {
			return err
		}
		return c.unheard
	})
	if err == nil {
		if c.logged {
			c.log.Info("the controls are in step with the store again")
		}
		c.failing, c.logged = time.Time{}, false
		return max(0, pollEach-time.Since(began))
	}
	if c.failing.IsZero() {
		c.failing = began
	}
	if !c.logged && time.Since(c.failing) >= silentFor && ctx.Err() == nil {
		c.logged = true
		c.log.Warn("the controls cannot be kept in step with the store: those that are known hold until they end", "error", err)
	}
	return pollAfter
}

// sync learns what is new in the store. Where the store has lost something, because it began anew, another process has taken
// over, or it holds less than is known here, it is written back; of two controls about the same the later one wins.
func (c *Controls) sync(ctx context.Context) error {
	if c.config.Store == nil {
		return nil
	}
	for {
		since := c.version
		n, err := c.pull(ctx, since)
		if err != nil {
			return err
		}
		if c.lost(since, &n) {
			c.retell()
			return c.reconcile(ctx)
		}
		c.take(&n)
		if c.version = n.Version; !n.More {
			return nil
		}
	}
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
func (c *Controls) lost(since backend.Version, n *backend.Notes) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	held, now := 0, time.Now()
	for _, k := range c.known {
		if now.Before(k.Ends) {
			held++
		}
	}
	switch {
	case n.Held < held:
		return true
	case since.Revision == 0:
		return false
	}
	return n.Version.Epoch != since.Epoch || n.Version.Revision < since.Revision || n.Version.Run != since.Run
}

// take learns what is new.
func (c *Controls) take(n *backend.Notes) {
	if len(n.Changed) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range n.Changed {
		c.learn(&n.Changed[i])
	}
	c.build(time.Now())
}

// reconcile learns all that the store has, and writes back what it lacks.
func (c *Controls) reconcile(ctx context.Context) error {
	var all backend.Notes
	has := make(map[string]int64)
	for {
		n, err := c.pull(ctx, all.Version)
		if err != nil {
			return err
		}
		for i := range n.Changed {
			has[n.Changed[i].ID] = max(has[n.Changed[i].ID], n.Changed[i].At)
		}
		all.Changed, all.Version = append(all.Changed, n.Changed...), n.Version
		if !n.More {
			break
		}
	}
	back := c.lacking(has)
	c.take(&all) // whether or not the store can be written to
	for len(back) > 0 {
		some := back[:min(len(back), putBackAtOnce)]
		if err := c.config.Store.PutBack(ctx, some); err != nil {
			return fmt.Errorf("%w: %w", ErrStore, err)
		}
		back = back[len(some):]
	}
	c.version = all.Version
	return nil
}

// lacking returns what is known, has not ended, and is later than what a store has, whose notes were made at the given times.
func (c *Controls) lacking(has map[string]int64) (back []backend.Note) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for id, k := range c.known {
		if at, ok := has[id]; now.Before(k.Ends) && (!ok || at < k.At) {
			back = append(back, k.Note)
		}
	}
	return back
}
