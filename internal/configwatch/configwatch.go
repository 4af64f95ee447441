// Package configwatch keeps the last good set of rules.
//
// Whoever feeds it, be it a directory or a control plane, hands over all sources at once. They are read, checked and
// compiled together: either all of them become the set that serves, or none does and the one before goes on. What
// changed, and what is wrong, is logged here.
package configwatch

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// ErrNoSources is the error of an update that brings nothing: it never replaces a set, and never becomes the first, unless
// [Config].Empty says so.
var ErrNoSources = errors.New("there are no rules")

// The most changes in the line of a reload, and the most problems in the log of one that was refused.
const (
	mostChanges  = 20
	mostProblems = 100
)

// Config says how sources are read and who is told. The zero value reads them as envoyproxy/ratelimit does.
type Config struct {
	Options descriptors.Options
	Empty   bool                                        // an update without sources is a set without rules, and no error
	Check   func(*descriptors.Set) descriptors.Problems // says what the store cannot do of a set; nil checks nothing
	Loaded  func(set *descriptors.Set, warnings int)    // called with each set that is taken; may be nil
	Refused func(reason error)                          // called with each update that is not; may be nil
}

// Watch holds the last good set.
type Watch struct {
	log    *slog.Logger
	config Config
	load   func([]descriptors.Source, descriptors.Options) (*descriptors.Set, descriptors.Problems, error)

	mu  sync.Mutex // one update at a time
	set *descriptors.Set
}

// New makes a Watch without rules.
func New(log *slog.Logger, c Config) *Watch {
	if c.Check == nil {
		c.Check = func(*descriptors.Set) descriptors.Problems { return nil }
	}
	if c.Loaded == nil {
		c.Loaded = func(*descriptors.Set, int) {}
	}
	if c.Refused == nil {
		c.Refused = func(error) {}
	}
	return &Watch{log: log, config: c, load: descriptors.Load}
}

// Rules are the last good set, or nil.
func (w *Watch) Rules() *descriptors.Set {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.set
}

// Update replaces the rules by what the sources hold. Unreadable lists what could not even be read: with any such
// error, with any error in the sources, and without sources unless that is allowed, the last good set stays and the error says why. The
// callbacks have returned when Update does, and before the log tells of it, so that whoever acts on the log finds in force
// what it says; calls wait for each other.
func (w *Watch) Update(sources []descriptors.Source, unreadable descriptors.Problems) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	set, problems, err := w.tryLoad(sources, unreadable)
	if err != nil {
		w.refuse(err, problems)
		return err
	}
	old := w.set
	w.set = set
	w.config.Loaded(set, warnings(problems))
	w.report(problems)
	w.announce(old, set)
	return nil
}

// tryLoad is descriptors.Load for a set that may be incomplete. A panic in there is one more way of refusing the set.
func (w *Watch) tryLoad(sources []descriptors.Source, unreadable descriptors.Problems) (
	set *descriptors.Set, problems descriptors.Problems, err error,
) {
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // rules that break the loader must not end a server that serves
			set, err = nil, fmt.Errorf("loading the rules: a bug in the loader: %v\n%s", p, debug.Stack())
		}
	}()
	set, problems, err = w.load(sources, w.config.Options)
	problems = slices.Concat(unreadable, problems)
	if err == nil && set != nil {
		problems = append(problems, w.config.Check(set)...)
	}
	switch {
	case problems.Failed():
		return nil, problems, problems
	case len(sources) == 0 && !w.config.Empty:
		return nil, problems, ErrNoSources
	}
	return set, problems, err
}

// refuse tells the owner that an update is not taken, and logs why.
func (w *Watch) refuse(err error, problems descriptors.Problems) {
	w.config.Refused(err)
	serving := "none"
	if w.set != nil {
		serving = "the last good ones"
	}
	if len(problems) == 0 {
		w.log.Error("rules refused", "error", err, "serving", serving)
	} else {
		w.log.Error("rules refused", "problems", len(problems), "serving", serving)
	}
	w.report(problems)
}

// warnings counts those among problems.
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
			w.log.Warn("doubtful rules", "problem", p.String())
		default:
			w.log.Error("wrong rules", "problem", p.String())
		}
	}
}

// announce logs a set that is taken, and what changed. It does so at the level that is logged by default, as the
// reference does with what its operators look for at the start.
func (w *Watch) announce(old, set *descriptors.Set) {
	rules := 0
	for range set.Rules() {
		rules++
	}
	if old == nil {
		w.log.Warn("rules loaded", "rules", rules, "files", len(set.Files()))
		return
	}
	changes := set.Diff(old)
	if len(changes) == 0 {
		w.log.Info("rules loaded again, nothing changed", "rules", rules, "files", len(set.Files()))
		return
	}
	shown := strings.Join(changes[:min(len(changes), mostChanges)], "; ")
	if more := len(changes) - mostChanges; more > 0 {
		shown += fmt.Sprintf("; and %d more", more)
	}
	w.log.Warn("rules changed", "changes", shown, "rules", rules, "files", len(set.Files()))
}
