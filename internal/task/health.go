package task

import (
	"sync"
	"time"
)

// Health keeps track of which components work. The whole is healthy if each of them works or is only degraded. It is
// safe for concurrent use.
type Health struct {
	mu         sync.Mutex
	components []*Component
	ok         bool
	watchers   []func(ok bool)
}

// Component is one part of a Health.
type Component struct {
	health *Health
	status ComponentStatus // guarded by health.mu
}

// ComponentStatus is the state of one component.
type ComponentStatus struct {
	Name      string
	OK        bool      // it works
	Degraded  bool      // it does not, and health does not depend on that; never together with OK
	Since     time.Time // when OK last changed
	LastError string    // the latest reason for not being OK, kept after it is over; may be empty
}

// NewHealth returns a Health without components, which is healthy.
func NewHealth() *Health { return &Health{ok: true} }

// Add adds a component. Unless ok is set it is unhealthy at first, for the given reason.
func (h *Health) Add(name string, ok bool, reason string) *Component {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &Component{health: h, status: ComponentStatus{Name: name, OK: ok, Since: time.Now()}}
	if !ok {
		c.status.LastError = reason
	}
	h.components = append(h.components, c)
	h.settle()
	return c
}

// Set notes that c works, or that it does not and makes the whole unhealthy. The reason, unless it is empty, becomes the
// latest error.
func (c *Component) Set(ok bool, reason string) { c.change(ok, false, reason) }

// Degrade notes that c does not work, but that the whole can do without it.
func (c *Component) Degrade(reason string) { c.change(false, true, reason) }

func (c *Component) change(ok, degraded bool, reason string) {
	c.health.mu.Lock()
	defer c.health.mu.Unlock()
	if c.status.OK != ok {
		c.status.OK, c.status.Since = ok, time.Now()
	}
	c.status.Degraded = degraded
	if reason != "" {
		c.status.LastError = reason
	}
	c.health.settle()
}

// OK reports whether no component makes the whole unhealthy.
func (h *Health) OK() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ok
}

// Components returns the state of each component, in the order in which they were added.
func (h *Health) Components() []ComponentStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]ComponentStatus, 0, len(h.components))
	for _, c := range h.components {
		all = append(all, c.status)
	}
	return all
}

// OnChange calls f at each change of OK, and once at the start, one call at a time and in order. f must not call h.
func (h *Health) OnChange(f func(ok bool)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watchers = append(h.watchers, f)
	f(h.ok)
}

// settle recomputes ok and notifies the watchers of a change. h.mu must be held.
func (h *Health) settle() {
	ok := true
	for _, c := range h.components {
		ok = ok && (c.status.OK || c.status.Degraded)
	}
	if ok == h.ok {
		return
	}
	h.ok = ok
	for _, f := range h.watchers {
		f(ok)
	}
}
