// Package health tracks which parts of a process work, and decides whether the whole is healthy. A [Tracker] has one [Component]
// for each part, which reports its state through a [Part].
//
// This package is part of the process.
package health

import (
	"sync"
	"time"
)

// Component is the state of one part of the process.
type Component struct {
	Name      string    `json:"name"`
	OK        bool      `json:"ok"`                   // it works
	Degraded  bool      `json:"degraded,omitempty"`   // it does not, and health does not depend on that; never together with OK
	Since     time.Time `json:"since"`                // when OK last changed
	LastError string    `json:"last_error,omitempty"` // the latest reason for not being OK, kept after it is over; may be empty
}

// Tracker keeps track of which components work. The whole is healthy if each of them works or is only degraded. It is
// safe for concurrent use.
type Tracker struct {
	mu         sync.Mutex
	components []*Component
	ok         bool
	watchers   []func(ok bool)
}

// Part changes one component of a Tracker.
type Part struct {
	tracker *Tracker
	state   *Component // guarded by tracker.mu
}

// NewTracker returns a Tracker without components, which is healthy.
func NewTracker() *Tracker { return &Tracker{ok: true} }

// Add adds a component. Unless ok is set it is unhealthy at first, for the given reason.
func (t *Tracker) Add(name string, ok bool, reason string) *Part {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := &Component{Name: name, OK: ok, Since: time.Now()}
	if !ok {
		c.LastError = reason
	}
	t.components = append(t.components, c)
	t.settle()
	return &Part{tracker: t, state: c}
}

// Set notes that the part works, or that it does not and makes the whole unhealthy. The reason, unless it is empty, becomes
// the latest error.
func (p *Part) Set(ok bool, reason string) { p.change(ok, false, reason) }

// Degrade notes that the part does not work, but that the whole can do without it.
func (p *Part) Degrade(reason string) { p.change(false, true, reason) }

func (p *Part) change(ok, degraded bool, reason string) {
	p.tracker.mu.Lock()
	defer p.tracker.mu.Unlock()
	if p.state.OK != ok {
		p.state.OK, p.state.Since = ok, time.Now()
	}
	p.state.Degraded = degraded
	if reason != "" {
		p.state.LastError = reason
	}
	p.tracker.settle()
}

// OK reports whether no component makes the whole unhealthy.
func (t *Tracker) OK() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ok
}

// Components returns the state of each component, in the order in which they were added.
func (t *Tracker) Components() []Component {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Component, 0, len(t.components))
	for _, c := range t.components {
		all = append(all, *c)
	}
	return all
}

// OnChange calls f at each change of OK, and once at the start, one call at a time and in order. f must not call t.
func (t *Tracker) OnChange(f func(ok bool)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watchers = append(t.watchers, f)
	f(t.ok)
}

// settle recomputes ok and notifies the watchers of a change. t.mu must be held.
func (t *Tracker) settle() {
	ok := true
	for _, c := range t.components {
		ok = ok && (c.OK || c.Degraded)
	}
	if ok == t.ok {
		return
	}
	t.ok = ok
	for _, f := range t.watchers {
		f(ok)
	}
}
