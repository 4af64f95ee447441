// Package health tracks which parts of a process work, and decides whether the whole is healthy. A [Tracker] has one [Component]
// for each part, which reports its state through a [Part].
//
// This package is part of the process.
package health

import (
	"sync"
	"time"
)

// Component is the state of a component of the process.
type Component struct {
	Name      string    `json:"name"`
	OK        bool      `json:"ok"`                   // whether it works
	Degraded  bool      `json:"degraded,omitempty"`   // it does not work, but does not affect health; never together with OK
	Since     time.Time `json:"since"`                // time of the last change of OK
	LastError string    `json:"last_error,omitempty"` // the last reason for not being OK, kept after recovery; may be empty
}

// Tracker tracks components. The process is healthy if each of them works or is only degraded. It is safe for
// concurrent use.
type Tracker struct {
	mu         sync.Mutex
	components []*Component
	ok         bool
	watchers   []func(ok bool)
}

// Part sets the state of one component of a Tracker.
type Part struct {
	tracker *Tracker
	state   *Component // guarded by tracker.mu
}

// NewTracker returns a Tracker without components, which is healthy.
func NewTracker() *Tracker { return &Tracker{ok: true} }

// Add adds a component. Unless ok is set, it starts unhealthy for the given reason.
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

// Set records that the component works, or that it does not and makes the process unhealthy. A reason that is not empty
// becomes LastError.
func (p *Part) Set(ok bool, reason string) { p.change(ok, false, reason) }

// Degrade records that the component does not work, but the process can do without it.
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

// OK reports whether the process is healthy.
func (t *Tracker) OK() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ok
}

// Components returns the state of each component, in the order of Add.
func (t *Tracker) Components() []Component {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Component, 0, len(t.components))
	for _, c := range t.components {
		all = append(all, *c)
	}
	return all
}

// OnChange calls f with the current OK, and then at each change, in order and never concurrently. f must not call t.
func (t *Tracker) OnChange(f func(ok bool)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watchers = append(t.watchers, f)
	f(t.ok)
}

// settle recomputes ok and notifies watchers of a change. The caller holds t.mu.
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
