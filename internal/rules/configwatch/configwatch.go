// Package configwatch keeps the last good set of rules.
//
// Its source, a directory or a control plane, passes all sources together. They are read, validated, and compiled
// together: either all of them become the new set, or none, and the previous set stays. Changes and problems are logged
// here.
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

// ErrNoSources is the error of an update without sources, which is invalid unless [Config].Empty is set.
var ErrNoSources = errors.New("no rules found")

// Maximum numbers of changes in the log of a reload, and of problems in the log of an invalid one.
const (
	maxChanges  = 20
	maxProblems = 100
)

// Changes describes the difference between a set of rules and the previous one.
type Changes interface {
	// Lines returns at most most changes, one a line, and the number of other changes.
	Lines(most int) (lines []string, more int)
}

// Config configures a [Watch]. Check, Compare, Loaded, and Invalid are required; [Quiet] has ones that do nothing.
type Config struct {
	Options descriptors.Options
	Empty   bool                                        // an update without sources results in a set without rules, not in an error
	Check   func(*descriptors.Set) descriptors.Problems // returns the features in a set that the backend lacks
	Compare func(old, set *descriptors.Set) Changes     // returns nil if the sets are equivalent; old may be nil
	Invalid func(reason error)                          // called for each invalid update

	// Loaded is called with each accepted set. newest is false if its rules or its overlay are older than the last update.
	Loaded func(set *descriptors.Set, warnings int, newest bool)

	// Overlay returns options that apply the sources of [Watch.Overlay]. It is nil without an overlay.
	Overlay func(descriptors.Options, []descriptors.Source) descriptors.Options
}

// Quiet returns a Config that reads sources like envoyproxy/ratelimit, accepts all valid rules, and reports nothing.
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

	mu     sync.Mutex // held during an update
	set    *descriptors.Set
	newest given // the latest input, valid or not; like used, kept only with an overlay
	used   given // the input of set
	given  int   // number of inputs so far

	accepted atomic.Pointer[Outcome] // update of the current set
	changed  atomic.Pointer[Outcome] // last update with changes
	rejected atomic.Pointer[Outcome] // last invalid update
	last     atomic.Pointer[Outcome] // last update
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

// Update replaces the rules by those of the sources. unreadable lists problems of reading them. If these or the sources
// contain errors, or if there are no sources but Config.Empty is not set, the last good set stays, and Update returns
// an error. Callbacks run before the outcome is logged, so logged changes are in effect. Concurrent calls wait for each
// other.
func (w *Watch) Update(sources []descriptors.Source, unreadable descriptors.Problems) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.given++
	w.newest.rules = input{w.given, sources, unreadable}
	defer w.forget()
	return w.update(w.newest, given{rules: w.newest.rules, overlay: w.used.overlay})
}

// update replaces the rules by g. If g is invalid, and there is a set, it tries other: the new half of g with the last good version of
// the other half. Even if other is accepted, g is reported as invalid.
func (w *Watch) update(g, other given) error {
	set, newest := w.tryLoad(g)
	switch {
	case newest.Err == nil:
		w.accept(g, set, newest)
		return nil
	case w.set == nil || g.same(other): // always the same without an overlay
		return w.invalid(newest)
	}
	set, mixed := w.tryLoad(other)
	if mixed.Err != nil {
		return w.invalid(mixed)
	}
	w.log.Warn("the newest rules and the newest overlay are not used together, because one of them was invalid: the last good one is used in its place")
	if w.accepted.Load().Version != mixed.Version {
		w.accept(other, set, mixed)
		newest.Changes = mixed.Changes
	}
	w.used = other
	_ = w.invalid(newest)
	return nil
}

// accept activates a set, and then determines the changes.
func (w *Watch) accept(g given, set *descriptors.Set, o *Outcome) {
	o.At = time.Now()
	old := w.set
	w.used, w.set = g, set
	w.config.Loaded(set, warnings(o.Problems), g.same(w.newest))
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
	w.last.Store(o)
	w.report(o.Problems)
	w.announceOverlay(set)
	switch {
	case old == nil:
		w.log.Info("rules loaded", "rules", rules(set), "files", len(set.Files()))
	case known:
		w.announce(set, o.Changes)
	}
}

// compare sets o.Changes to the changes from old to set, which is already active. If the comparison panics, compare
// logs that and returns false.
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

// tryLoad is descriptors.Load for unreadable sources too. A panic counts as an error in the set. The set must not be used if the
// outcome has an error.
func (w *Watch) tryLoad(g given) (set *descriptors.Set, o *Outcome) {
	o = &Outcome{Version: g.version()}
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // rules that crash the loader must not end a running server
			o.Err = fmt.Errorf("loading the rules: a bug in the loader: %v\n%s", p, debug.Stack())
		}
	}()
	options := w.config.Options
	if w.config.Overlay != nil {
		options = w.config.Overlay(options, g.overlay.sources)
	}
	set, o.Problems, o.Err = w.load(g.rules.sources, options)
	o.Problems = slices.Concat(g.rules.unreadable, g.overlay.unreadable, o.Problems)
	if o.Err == nil && set != nil {
		o.Problems = append(o.Problems, w.config.Check(set)...)
	}
	switch {
	case o.Problems.Failed():
		o.Err = o.Problems
	case len(g.rules.sources) == 0 && !w.config.Empty:
		o.Err = ErrNoSources
	}
	return set, o
}

// invalid reports and logs an invalid update, and returns its error.
func (w *Watch) invalid(o *Outcome) error {
	o.At = time.Now()
	err, problems := o.Err, o.Problems
	w.rejected.Store(o)
	w.last.Store(o)
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
	return err
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

// report logs problems, up to a readable number.
func (w *Watch) report(problems descriptors.Problems) {
	for i, p := range problems {
		switch {
		case i > maxProblems:
		case i == maxProblems:
			w.log.Error("more problems with the rules, see ratelimitd check", "more", len(problems)-i)
		case p.Warning:
			w.log.Warn("warning about the rules", "problem", p.String())
		default:
			w.log.Error("error in the rules", "problem", p.String())
		}
	}
}

// announce logs the replacement of a set, with the changes, at the default level.
func (w *Watch) announce(set *descriptors.Set, changes Changes) {
	if changes == nil {
		w.log.Info("rules reloaded, nothing changed", "rules", rules(set), "files", len(set.Files()))
		return
	}
	w.log.Info("rules changed", "changes", inLine(changes.Lines(maxChanges)), "rules", rules(set), "files", len(set.Files()))
}

// inLine formats changes on one line, with the number of others.
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
