// Package file feeds rules from a directory.
//
// The whole directory is read whenever something in it may have changed: the kernel reports most changes, and an
// occasional scan finds the others. What was read is passed to a [configwatch.Watch] only if it differs from the last
// time, so that a burst of events, or touching a file, causes no reload. Symbolic links may be swapped anywhere on the
// path to the directory or in it, and directories may disappear and come back.
//
// This package is part of the process.
package file

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

const (
	quiet    = 100 * time.Millisecond // how long there must be no events before the files are read
	patience = 500 * time.Millisecond // the maximum wait for that
)

// Config says what is watched. Its fields are required unless they state a default.
type Config struct {
	Layout Layout
	Rescan time.Duration // how often everything is scanned; 0 means 10 s

	// List, if it is not nil, is called with the files in place of a [configwatch.Watch], each time that one of them may have
	// changed. They have not been read, and may be of any size.
	List func(files []File, problems descriptors.Problems)
}

// Target is what files are handed to: a [configwatch.Watch], or the [configwatch.Overlay] of one.
type Target interface {
	Update(sources []descriptors.Source, unreadable descriptors.Problems) error
	Try(sources []descriptors.Source, unreadable descriptors.Problems) *configwatch.Outcome
}

// Watcher watches a directory. It is a task.
type Watcher struct {
	log    *slog.Logger
	config Config
	rules  Target
	reload chan chan<- struct{} // of a caller that waits for a reload, or nil
	first  chan struct{}

	// Used only by Run.
	seen    bool // something was passed on, of which digest is the digest
	digest  [sha256.Size]byte
	watched map[string]names
	blind   bool // a directory could not be watched, which has been logged
}

// names are the names that are watched in a directory; nil means all of them.
type names []string

// New returns a Watcher that updates rules, which may be nil with Config.List.
func New(log *slog.Logger, c Config, rules Target) *Watcher {
	if c.Rescan == 0 {
		c.Rescan = 10 * time.Second
	}
	return &Watcher{log: log, config: c, rules: rules, reload: make(chan chan<- struct{}, 1), first: make(chan struct{})}
}

// String names the task.
func (w *Watcher) String() string { return w.config.Layout.what() + " in " + w.config.Layout.Dir() }

// First is closed once the directory has been read for the first time, whatever the outcome.
func (w *Watcher) First() <-chan struct{} { return w.first }

// Reload has the files read again and passed on even if nothing has changed. It does not wait for that.
func (w *Watcher) Reload() {
	select {
	case w.reload <- nil:
	default: // one is pending
	}
}

// ReloadNow has the files read again, and returns once it is decided whether they become the rules, or ctx has ended.
func (w *Watcher) ReloadNow(ctx context.Context) error {
	done, reload := make(chan struct{}), w.reload
	for {
		select {
		case reload <- done:
			reload = nil
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Try reads the files, and returns what would become of them, which it does not carry out.
func (w *Watcher) Try() (*configwatch.Outcome, error) {
	s := scan(w.config.Layout, false)
	return w.rules.Try(s.sources, s.problems), nil
}

// Run reads the files, and reads them again whenever they change, until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	events := make(chan fsnotify.Event)
	var failures chan error
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		w.log.Warn("cannot watch directories, polling them instead", "every", w.config.Rescan, "error", err)
	} else {
		defer func() { _ = notify.Close() }() // nothing reads its events any more
		events, failures = notify.Events, notify.Errors
	}
	rescan := time.NewTicker(w.config.Rescan)
	defer rescan.Stop()
	settled := newDebounce()
	defer settled.timer.Stop()

	look := func(force bool) {
		if w.look(notify, force) { // a directory has just begun to be watched: earlier changes may have been missed
			settled.event(time.Now())
		}
	}
	look(true)
	close(w.first)
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-events:
			if w.concerns(e.Name) {
				settled.event(time.Now())
			}
		case err := <-failures:
			w.log.Info("directory events were lost, reading the directories again", "error", err)
			settled.event(time.Now())
		case <-settled.timer.C:
			settled.since = time.Time{}
			look(false)
		case <-rescan.C:
			look(false)
		case done := <-w.reload:
			look(true)
			if done != nil {
				close(done)
			}
		}
	}
}

// debounce fires when there have been no events for a while, or when they have gone on for long.
type debounce struct {
	timer *time.Timer
	since time.Time // time of the first pending event; zero if there is none
}

func newDebounce() *debounce {
	d := &debounce{timer: time.NewTimer(time.Hour)}
	d.timer.Stop()
	return d
}

func (d *debounce) event(now time.Time) {
	if d.since.IsZero() {
		d.since = now
	}
	d.timer.Reset(max(0, min(quiet, d.since.Add(patience).Sub(now))))
}

// look reads everything, passes it on if it differs from the last time, and watches the directories that it found. It
// returns whether one of them was not watched before.
func (w *Watcher) look(notify *fsnotify.Watcher, force bool) bool {
	s := scan(w.config.Layout, w.config.List != nil)
	if digest := s.digest(); force || !w.seen || digest != w.digest {
		w.seen, w.digest = true, digest
		if s.listing {
			w.config.List(s.files, s.problems)
		} else if err := w.rules.Update(s.sources, s.problems); err != nil {
			w.log.Debug("the directory could not be read", "error", err) // the Watch has logged why
		}
	}
	return notify != nil && w.watch(notify, s)
}

// watch watches what s was read from, and nothing else. It returns whether a directory was not watched before.
func (w *Watcher) watch(notify *fsnotify.Watcher, s *snapshot) (fresh bool) {
	before := notify.WatchList()
	w.watched = wanted(w.config.Layout, s)
	for dir := range w.watched {
		switch err := notify.Add(dir); {
		case err == nil:
			fresh = fresh || !slices.Contains(before, dir)
		case !w.blind:
			w.blind = true
			w.log.Warn("cannot watch a directory, polling it instead", "directory", dir, "every", w.config.Rescan, "error", err)
		}
	}
	for _, dir := range before {
		if _, still := w.watched[dir]; !still {
			_ = notify.Remove(dir) // it may not exist any more
		}
	}
	return fresh
}

// concerns reports whether an event at path may have changed what would be read.
func (w *Watcher) concerns(path string) bool {
	if _, itself := w.watched[path]; itself {
		return true
	}
	watched, ok := w.watched[filepath.Dir(path)]
	return ok && (watched == nil || slices.Contains(watched, filepath.Base(path)))
}

// wanted returns the directories to watch: those that were read; those with files that symbolic links lead to, for
// these files; and each directory on the path from the parent of the root, for the next element of the path, which may
// be a link that is swapped or a directory that does not exist yet.
func wanted(l Layout, s *snapshot) map[string]names {
	all := make(map[string]names, len(s.dirs)+4)
	add := func(path string) {
		if watched, ok := all[filepath.Dir(path)]; !ok || watched != nil {
			all[filepath.Dir(path)] = append(watched, filepath.Base(path))
		}
	}
	for _, dir := range s.dirs {
		all[dir] = nil
	}
	for _, file := range s.links {
		add(file)
	}
	for _, step := range way(l) {
		add(step)
	}
	return all
}

// way returns the paths on the way from the root to the directory, each with its parent resolved. If the root's parent
// does not exist, they begin at an existing directory above it. Paths whose parent does not exist are omitted.
func way(l Layout) []string {
	target, err := filepath.Abs(l.Dir())
	if err != nil {
		return nil
	}
	root, err := filepath.Abs(l.Root)
	if err != nil {
		return nil
	}
	var steps []string
	for path := target; ; path = filepath.Dir(path) {
		parent, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err == nil {
			steps = append(steps, filepath.Join(parent, filepath.Base(path)))
		}
		above := len(path) <= len(root)
		if above && err == nil || path == filepath.Dir(path) {
			return steps
		}
	}
}
