package controls

import (
	"slices"
	"time"
)

// Known returns the controls that are in force as far as is known, sorted like those of List, without asking the store.
func (c *Controls) Known() []*Control {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.live(time.Now())
	slices.SortFunc(all, compare)
	return all
}
