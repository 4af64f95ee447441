// Package configwatch keeps the last good set of rules.
//
// Its feed, a directory or a control plane, hands over all sources at once. They are read, checked and compiled
// together: either all of them become the new set, or none does and the previous one stays in use. What changed, and
// what is wrong, is logged here.
//
// This package is part of the process.
package configwatch

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// ErrNoSources is the error of an update without sources: unless [Config].Empty is set it never becomes the set, not
// even the first one.
var ErrNoSources = errors.New("no rules found")

// The most changes in the line of a reload, and the most problems in the log of one that was invalid.
const (
	mostChanges  = 20
	mostProblems = 100
)

// Changes describes how a set of rules differs from the one before.
type Changes interface {
	// Lines returns at most most changes, one in each line, and the number of other changes.
	Lines(most int) (lines []string, more int)
}

// Config configures a [Watch]. Check, Compare, Loaded and Invalid are required; those of [Quiet] do nothing.
type Config struct {
	Options descriptors.Options
	Empty   bool                                        // an update without sources is a set without rules rather than an error
	Check   func(*descriptors.Set) descriptors.Problems // returns what the store does not support in a set
	Compare func(old, set *descriptors.Set) Changes     // returns nil if the sets do not differ; old may be nil
	Invalid func(reason error)                          // called for each invalid update

	// Loaded is called with each accepted set. Newest is false if its rules or its overlay are an earlier version than the last one given.
	Loaded func(set *descriptors.Set, warnings int, newest bool)

	// Overlay returns options with which the sources of [Watch.Overlay] change the rules. It is nil if there is no overlay.
	Overlay func(descriptors.Options, []descriptors.Source) descriptors.Options
}

// Quiet returns a Config that reads sources as envoyproxy/ratelimit does, takes whatever rules are valid, and reports nothing.
func Quiet() Config {
	return Config{
		Check:   func(*descriptors.Set) descriptors.Problems { return nil },
		Compare: func(*descriptors.Set, *descriptors.Set) Changes { return nil },
		Loaded:  func(*descriptors.Set, int, bool) {},
		Invalid: func(error) {},
	}
}

// Watch holds the last good set.
type Watch struct {
	log    *slog.Logger
	config Config
	load   func([]descriptors.Source, descriptors.Options) (*descriptors.Set, descriptors.Problems, error)

	mu      sync.Mutex // one update at a time
	set     *descriptors.Set
	updates int
	newest  given // whatever became of it; like used, kept only if there is an overlay
	used    given // what set comes from
	given   int   // how many inputs there were

	accepted atomic.Pointer[Outcome] // of the update that set comes from
	changed  atomic.Pointer[Outcome] // of the last one with changes
	rejected atomic.Pointer[Outcome] // of the last one that was invalid
}

// New returns a Watch without rules.
func New(log *slog.Logger, c Config) *Watch {
	return &Watch{log: log, config: c, load: descriptors.Load}
}

// Rules returns the last good set, or nil.
func (w *Watch) Rules() *descriptors.Set {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.set
}

// Update replaces the rules by those of the sources. Unreadable lists what could not even be read. If it has an error,
// or the sources have one, or there are no sources and that is not allowed, the last good set stays and the error says
// why. The callbacks return before Update does, and before the outcome is logged, so that what the log says is already
// in force. Concurrent calls wait for each other.
func (w *Watch) Update(sources []descriptors.Source, unreadable descriptors.Problems) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.given++
	w.newest.rules = input{w.given, sources, unreadable}
	defer w.forget()
	return w.update(w.newest, given{rules: w.newest.rules, overlay: w.used.overlay})
}

// update replaces the rules by what is given or, if that is invalid while there is an overlay and a set, by what else is. Then
// it is accepted, and what was given is invalid all the same, and reported as such for as long as it is.
func (w *Watch) update(g, other given) error {
	set, problems, err := w.tryLoad(g)
	if err == nil {
		w.accept(g, set, problems)
		return nil
	}
	if w.config.Overlay != nil && w.set != nil && !g.same(other) {
		set, others, otherErr := w.tryLoad(other)
		if otherErr == nil {
			w.log.Warn("the newest rules and the newest overlay are not used together, because one of them was invalid: the last good one is used in its place")
			var changes Changes
			if w.accepted.Load().Version != other.version() {
				w.accept(other, set, others)
				changes = w.accepted.Load().Changes
			}
			w.used = other
			w.invalid(w.outcome(g, problems, err, changes))
			return nil
		}
		g, problems, err = other, others, otherErr
	}
	w.invalid(w.outcome(g, problems, err, nil))
	return err
}

// accept puts a set in use, and then finds out what that changes.
func (w *Watch) accept(g given, set *descriptors.Set, problems descriptors.Problems) {
	o := w.outcome(g, problems, nil, nil)
	old := w.set
	w.used, w.set = g, set
	w.config.Loaded(set, warnings(problems), g.same(w.newest))
	o.Since = o.At
	known := true
	if old != nil {
		known = w.compare(o, old, set)
		if before := w.accepted.Load(); before.Version == o.Version {
			o.Since = before.Since
		}
	}
	if o.Changes != nil {
		w.changed.Store(o)
	}
	w.accepted.Store(o)
	w.report(problems)
	w.announceOverlay(set)
	switch {
	case old == nil:
		w.log.Info("rules loaded", "rules", rules(set), "files", len(set.Files()))
	case known:
		w.announce(set, o.Changes)
	}
}

// compare sets o.Changes to the changes from old to set, which is in use. It logs a panic, and returns false.
func (w *Watch) compare(o *Outcome, old, set *descriptors.Set) (known bool) {
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // rules that crash the comparison must not end a running server
			w.log.Error("cannot tell what the new rules change: a bug in the comparison with the previous ones",
				"serving", "the new ones", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	o.Changes = w.config.Compare(old, set)
	return true
}

// outcome returns the outcome of one more update.
func (w *Watch) outcome(g given, problems descriptors.Problems, err error, changes Changes) *Outcome {
	w.updates++
	return &Outcome{Number: w.updates, At: time.Now(), Version: g.version(), Changes: changes, Problems: problems, Err: err}
}

// tryLoad is descriptors.Load for a set that may be incomplete. It treats a panic as another error in the set.
func (w *Watch) tryLoad(g given) (
	set *descriptors.Set, problems descriptors.Problems, err error,
) {
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // rules that crash the loader must not end a running server
			set, err = nil, fmt.Errorf("loading the rules: a bug in the loader: %v\n%s", p, debug.Stack())
		}
	}()
	o := w.config.Options
	if w.config.Overlay != nil {
		o = w.config.Overlay(o, g.overlay.sources)
	}
	set, problems, err = w.load(g.rules.sources, o)
	problems = slices.Concat(g.rules.unreadable, g.overlay.unreadable, problems)
	if err == nil && set != nil {
		problems = append(problems, w.config.Check(set)...)
	}
	switch {
	case problems.Failed():
		return nil, problems, problems
	case len(g.rules.sources) == 0 && !w.config.Empty:
		return nil, problems, ErrNoSources
	}
	return set, problems, err
}

// invalid reports that an update is invalid, and logs why.
func (w *Watch) invalid(o *Outcome) {
	err, problems := o.Err, o.Problems
	w.rejected.Store(o)
	w.config.Invalid(err)
	serving := "none"
	if w.set != nil {
		serving = "the last good ones"
	}
	if len(problems) == 0 {
		w.log.Error("invalid rules", "error", err, "serving", serving)
	} else {
		w.log.Error("invalid rules", "problems", len(problems), "serving", serving)
	}
	w.report(problems)
}

// warnings counts the warnings among problems.
func warnings(problems descriptors.Problems) (n int) {
	for _, p := range problems {
		if p.Warning {
			n++
		}
	}
	return n
}

// report logs problems, as many as are readable.
func (w *Watch) report(problems descriptors.Problems) {
	for i, p := range problems {
		switch {
		case i > mostProblems:
		case i == mostProblems:
			w.log.Error("more problems with the rules, see ratelimitd check", "more", len(problems)-i)
		case p.Warning:
			w.log.Warn("warning about the rules", "problem", p.String())
		default:
			w.log.Error("error in the rules", "problem", p.String())
		}
	}
}

// announce logs a set that replaced another one, and the changes, at the default level.
func (w *Watch) announce(set *descriptors.Set, changes Changes) {
	if changes == nil {
		w.log.Info("rules reloaded, nothing changed", "rules", rules(set), "files", len(set.Files()))
		return
	}
	w.log.Info("rules changed", "changes", inLine(changes.Lines(mostChanges)), "rules", rules(set), "files", len(set.Files()))
}

// inLine returns changes on one line, with the number of others.
func inLine(changes []string, more int) string {
	if more > 0 {
		changes = append(changes, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(changes, "; ")
}

// rules counts the rules of a set.
func rules(set *descriptors.Set) (n int) {
	for range set.Rules() {
		n++
	}
	return n
}
