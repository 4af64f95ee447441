// Package file reads rules from a directory and follows its changes.
//
// After any possible change, it reads the whole directory: the kernel reports most changes, and periodic scans find the
// others. It passes the files to a [configwatch.Watch] only if they differ from the last ones, so bursts of events and
// touched files cause no reload. Symbolic links on the path to the directory or in it may be replaced, and directories
// may disappear and return.
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
	quiet    = 100 * time.Millisecond // time without events before reading
	patience = 500 * time.Millisecond // maximum wait for quiet
)

// Config configures a Watcher. Fields are required unless they state a default.
type Config struct {
	Layout Layout
	Rescan time.Duration // scan interval; 0 means 10 s

	// List, if not nil, receives the files instead of a [configwatch.Watch] after each possible change. The files have not
	// been read, and may have any size.
	List func(files []File, problems descriptors.Problems)
}

// Target receives files: a [configwatch.Watch] or its [configwatch.Overlay].
type Target interface {
	Update(sources []descriptors.Source, unreadable descriptors.Problems) error
	Try(sources []descriptors.Source, unreadable descriptors.Problems) *configwatch.Outcome
}

// Watcher follows a directory. It is a task.
type Watcher struct {
	configwatch.Reloads // answered once the files have been accepted or found invalid

	log    *slog.Logger
	config Config
	rules  Target
	first  chan struct{}

	// Used only by Run.
	seen    bool // files were passed on, with this digest
	digest  [sha256.Size]byte
	watched map[string]names
	blind   bool // a directory could not be watched, which has been logged
}

// names are the watched names in a directory; nil means all.
type names []string

// New returns a Watcher that updates rules, which may be nil if Config.List is set.
func New(log *slog.Logger, c Config, rules Target) *Watcher {
	if c.Rescan == 0 {
		c.Rescan = 10 * time.Second
	}
	return &Watcher{Reloads: configwatch.NewReloads(), log: log, config: c, rules: rules, first: make(chan struct{})}
}

// String returns the name of the task.
func (w *Watcher) String() string { return w.config.Layout.what() + " in " + w.config.Layout.Dir() }

// First returns a channel that is closed after the directory has been read for the first time, even without success.
func (w *Watcher) First() <-chan struct{} { return w.first }

// Try reads the files, and returns the outcome that they would have, without using them.
func (w *Watcher) Try() (*configwatch.Outcome, error) {
	s := scan(w.config.Layout, false)
	return w.rules.Try(s.sources, s.problems), nil
}

// Run reads the files at the start and after each change, until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	events := make(chan fsnotify.Event)
	var failures chan error
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		w.log.Warn("cannot watch directories, polling them instead", "every", w.config.Rescan, "error", err)
	} else {
		defer func() { _ = notify.Close() }() // its events are no longer read
		events, failures = notify.Events, notify.Errors
	}
	rescan := time.NewTicker(w.config.Rescan)
	defer rescan.Stop()
	settled := newDebounce()
	defer settled.timer.Stop()

	look := func(force bool) {
		if w.look(notify, force) { // a newly watched directory may have changed before
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
		case done := <-w.Reloads:
			look(true)
			if done != nil {
				done <- nil
			}
		}
	}
}

// debounce fires after a time without events, or when events have continued for too long.
type debounce struct {
	timer *time.Timer
	since time.Time // first pending event; zero if there is none
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

// look reads everything, passes it on if it has changed, and watches the directories found. It reports whether it
// started to watch a directory.
func (w *Watcher) look(notify *fsnotify.Watcher, force bool) bool {
	s := scan(w.config.Layout, w.config.List != nil)
	if digest := s.digest(); force || !w.seen || digest != w.digest {
		w.seen, w.digest = true, digest
		if s.listing {
			w.config.List(s.files, s.problems)
		} else if err := w.rules.Update(s.sources, s.problems); err != nil {
			w.log.Debug("the directory could not be read", "error", err) // the Watch has logged the reason
		}
	}
	return notify != nil && w.watch(notify, s)
}

// watch watches only the origins of s. It reports whether it started to watch a directory.
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
			_ = notify.Remove(dir) // it may no longer exist
		}
	}
	return fresh
}

// concerns reports whether an event at path may change the result of reading.
func (w *Watcher) concerns(path string) bool {
	if _, itself := w.watched[path]; itself {
		return true
	}
	watched, ok := w.watched[filepath.Dir(path)]
	return ok && (watched == nil || slices.Contains(watched, filepath.Base(path)))
}

// wanted returns the directories to watch: the directories that were read; directories with targets of symbolic links,
// for these files; and each directory on the path from the root's parent, for the next element of the path, which may
// be a link to be replaced or a missing directory.
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

// way returns the paths from the root to the directory, each with its parent resolved. If the root's parent does not
// exist, they begin at an existing ancestor. Paths whose parent does not exist are omitted.
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
