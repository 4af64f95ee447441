package configwatch

import (
	"fmt"
	"slices"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// input is sources, and what could not even be read.
type input struct {
	number     int // as many were given before
	sources    []descriptors.Source
	unreadable descriptors.Problems
}

// given is what a set is made of.
type given struct{ rules, overlay input }

func (g *given) same(other given) bool {
	return g.rules.number == other.rules.number && g.overlay.number == other.overlay.number
}

// version returns a hash of the names and the contents of what is given.
func (g *given) version() string { return version(slices.Concat(g.rules.sources, g.overlay.sources)) }

// Overlay is what is laid over the rules of a Watch. It is updated on its own.
type Overlay struct{ w *Watch }

// Overlay returns the overlay of a Watch whose Config says that there is one.
func (w *Watch) Overlay() *Overlay { return &Overlay{w} }

// Update replaces the overlay by that of the sources, as [Watch.Update] does with rules: a bad one is invalid, and the last
// good one stays. The first one is only kept, for the rules that have to follow it.
func (o *Overlay) Update(sources []descriptors.Source, unreadable descriptors.Problems) error {
	w := o.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.given++
	w.newest.overlay = input{w.given, sources, unreadable}
	if w.updates == 0 {
		return nil
	}
	return w.update(w.newest, given{rules: w.used.rules, overlay: w.newest.overlay})
}

// Try returns what would become of an update of the overlay, which it does not carry out: its Number is 0.
func (o *Overlay) Try(sources []descriptors.Source, unreadable descriptors.Problems) *Outcome {
	w := o.w
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.try(given{rules: w.newest.rules, overlay: input{0, sources, unreadable}})
}

// Laid returns a number that changes with the overlay, and so tells whether rules that were invalid might not be now.
func (w *Watch) Laid() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.newest.overlay.number
}

// UsesNewestOverlay reports whether the rules in use have the newest overlay, or there is none.
func (w *Watch) UsesNewestOverlay() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.used.overlay.number == w.newest.overlay.number
}

// forget drops the sources that are not needed again, because there is no overlay to lay over them.
func (w *Watch) forget() {
	if w.config.Overlay == nil {
		w.newest, w.used = given{}, given{}
	}
}

// announceOverlay logs what the overlay changes.
func (w *Watch) announceOverlay(set *descriptors.Set) {
	if w.config.Overlay == nil {
		return
	}
	var changes []string
	all := set.Overlaid()
	for _, o := range all[:min(len(all), mostChanges)] {
		changes = append(changes, fmt.Sprintf("%s: %s (%s)", o.Path, o.Keys, o.Place))
	}
	w.log.Info("overlay applied to the rules", "changed", len(all), "changes", inLine(changes, len(all)-mostChanges))
}
