package configwatch

import (
	"fmt"
	"slices"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// input is sources, and problems of reading them.
type input struct {
	number     int // sequence number, from 1
	sources    []descriptors.Source
	unreadable descriptors.Problems
}

// given is the input of a set.
type given struct{ rules, overlay input }

func (g *given) same(other given) bool {
	return g.rules.number == other.rules.number && g.overlay.number == other.overlay.number
}

// version returns a hash of the inputs' names and contents.
func (g *given) version() string { return version(slices.Concat(g.rules.sources, g.overlay.sources)) }

// Overlay is the overlay of a Watch, which is updated separately from the rules.
type Overlay struct{ w *Watch }

// Overlay returns the overlay of a Watch with Config.Overlay.
func (w *Watch) Overlay() *Overlay { return &Overlay{w} }

// Update replaces the overlay like [Watch.Update] replaces rules: if it is invalid, the last good overlay stays. Before the
// first rules, Update only stores the overlay.
func (o *Overlay) Update(sources []descriptors.Source, unreadable descriptors.Problems) error {
	w := o.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.given++
	w.newest.overlay = input{w.given, sources, unreadable}
	if w.last.Load() == nil {
		return nil
	}
	return w.update(w.newest, given{rules: w.used.rules, overlay: w.newest.overlay})
}

// Try returns the outcome that an update of the overlay would have, without performing it.
func (o *Overlay) Try(sources []descriptors.Source, unreadable descriptors.Problems) *Outcome {
	w := o.w
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.try(given{rules: w.newest.rules, overlay: input{0, sources, unreadable}})
}

// OverlayRevision returns a number that changes with the overlay. If it has changed, invalid rules may have become valid.
func (w *Watch) OverlayRevision() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.newest.overlay.number
}

// UsesNewestOverlay reports whether the current rules have the newest overlay, or there is none.
func (w *Watch) UsesNewestOverlay() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.used.overlay.number == w.newest.overlay.number
}

// forget drops sources that are not needed again without an overlay.
func (w *Watch) forget() {
	if w.config.Overlay == nil {
		w.newest, w.used = given{}, given{}
	}
}

// announceOverlay logs the effect of the overlay.
func (w *Watch) announceOverlay(set *descriptors.Set) {
	if w.config.Overlay == nil {
		return
	}
	var changes []string
	all := set.Overlaid()
	for _, o := range all[:min(len(all), maxChanges)] {
		changes = append(changes, fmt.Sprintf("%s: %s (%s)", o.Path, o.Keys, o.Place))
	}
	w.log.Info("overlay applied to the rules", "changed", len(all), "changes", inLine(changes, len(all)-maxChanges))
}
