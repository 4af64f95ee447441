package controls

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
)

// MaxTold is how many acts of operators are kept: the latest.
const MaxTold = 1000

// toldAtOnce is how many acts are written to the store in one call.
const toldAtOnce = 100

// Act is what an operator did, or was refused.
type Act struct {
	ID        string    `json:"id"`   // which no other act has
	Time      time.Time `json:"time"` // to the microsecond
	Method    string    `json:"method"`
	RequestID string    `json:"request_id,omitempty"`
	By        string    `json:"by"`
	From      string    `json:"from"`
	Domain    []byte    `json:"domain,omitempty"` // texts of requests are bytes, since they need not be UTF-8
	// Entries are those of the descriptor that it is about.
	Entries [][2][]byte `json:"entries,omitempty"`
	What    string      `json:"what,omitempty"` // without values of end users, as are Before and After
	Reason  string      `json:"reason,omitempty"`
	Before  string      `json:"before,omitempty"`
	After   string      `json:"after,omitempty"`
	Refused string      `json:"refused,omitempty"` // the code of the refusal; empty if it was done
	Why     string      `json:"why,omitempty"`     // of the refusal; it may have values of end users
}

// told is an act as the store has it.
type told struct {
	backend.Told

	act Act
}

// Tell keeps a, whose ID and Time it fills in, for [Controls.Told]. What the store does not take now it gets later. With wait
// it returns when the store has it, or cannot be asked.
func (c *Controls) Tell(ctx context.Context, a *Act, wait bool) {
	a.ID, a.Time = rand.Text()[:16], time.Now().UTC().Truncate(time.Microsecond)
	text, err := json.Marshal(a)
	if err != nil { // a time after the year 9999
		c.log.Error("what an operator did cannot be kept", "error", err)
		return
	}
	c.mu.Lock()
	c.told = append(c.told, told{backend.Told{At: a.Time.UnixMicro(), Text: text}, *a})
	c.told = slices.Delete(c.told, 0, max(0, len(c.told)-MaxTold))
	c.untold = min(c.untold+1, len(c.told))
	c.mu.Unlock()
	switch {
	case c.config.Store == nil:
	case wait:
		_ = c.ask(context.WithoutCancel(ctx), c.tell) // Run tries again
	default:
		c.hurry()
	}
}

// hurry has Run look after everything now.
func (c *Controls) hurry() {
	select {
	case c.early <- struct{}{}:
	default:
	}
}

// tell gives the store what it has not got yet.
func (c *Controls) tell(ctx context.Context) error {
	for {
		c.mu.Lock()
		var some []backend.Told
		for _, t := range c.told[len(c.told)-c.untold:] {
			if some = append(some, t.Told); len(some) == toldAtOnce {
				break
			}
		}
		c.mu.Unlock()
		if len(some) == 0 {
			return nil
		}
		if err := c.config.Store.Tell(ctx, some, MaxTold); err != nil {
			return errorOf(err)
		}
		c.mu.Lock()
		c.untold -= min(c.untold, len(some)) // those that were dropped since were the first
		c.mu.Unlock()
	}
}

// late is how much later than others what was done may come to the store, or by how much clocks may differ.
const late = time.Minute

// hear learns, now and then, what was done elsewhere, so that there is somebody who knows it if the store loses it.
func (c *Controls) hear(ctx context.Context) error {
	if time.Since(c.heard) < beatEach {
		return nil
	}
	texts, err := c.config.Store.Told(ctx, max(0, c.latest-late.Microseconds()))
	if err != nil {
		return errorOf(err)
	}
	c.heard = time.Now()
	acts := c.parse(texts)
	c.mu.Lock()
	defer c.mu.Unlock()
	known := make(map[string]bool, len(c.told))
	for i := range c.told {
		known[c.told[i].act.ID] = true
	}
	for i := range acts {
		if c.latest = max(c.latest, acts[i].At); !known[acts[i].act.ID] {
			c.told = slices.Insert(c.told, len(c.told)-c.untold, acts[i])
		}
	}
	c.told = slices.Delete(c.told, 0, max(0, len(c.told)-MaxTold))
	c.untold = min(c.untold, len(c.told))
	return nil
}

// parse reads texts of the store.
func (c *Controls) parse(texts [][]byte) (all []told) {
	for _, text := range texts {
		var a Act
		if err := json.Unmarshal(text, &a); err != nil {
			c.log.Warn("what an operator did cannot be read from the store", "error", err)
			continue
		}
		all = append(all, told{backend.Told{At: a.Time.UnixMicro(), Text: text}, a})
	}
	return all
}

// retell has the store get again all that this process knows of, because the store may have lost it.
func (c *Controls) retell() {
	c.mu.Lock()
	c.untold = len(c.told)
	c.mu.Unlock()
}

// Told returns what operators did, the latest first. If the store cannot be asked, which complete tells, it is what this
// process knows of.
func (c *Controls) Told(ctx context.Context) (all []Act, complete bool) {
	var shared [][]byte
	complete = c.config.Store == nil || c.ask(ctx, func(ctx context.Context) (err error) {
		shared, err = c.config.Store.Told(ctx, 0)
		return err
	}) == nil
	known := make(map[string]bool)
	add := func(a *Act) {
		if !known[a.ID] {
			known[a.ID] = true
			all = append(all, *a)
		}
	}
	c.mu.Lock()
	for i := range c.told {
		add(&c.told[i].act)
	}
	c.mu.Unlock()
	for _, t := range c.parse(shared) {
		add(&t.act)
	}
	slices.SortFunc(all, func(a, b Act) int { return cmp.Or(b.Time.Compare(a.Time), cmp.Compare(b.ID, a.ID)) })
	return all[:min(len(all), MaxTold)], complete
}
