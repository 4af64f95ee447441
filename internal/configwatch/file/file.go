// Package file feeds rules from a directory.
//
// The directory is read whole whenever something in it may have changed: the kernel tells of most changes, and a slow
// look at everything finds those it did not tell of. What is found goes to a [configwatch.Watch] only where it differs
// from what was found before, so a burst of events, or the touching of a file, makes no reload. Symbolic links may be
// swapped anywhere on the way to the directory or in it, and directories may go and come again.
package file

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/ratelimitd/ratelimitd/internal/configwatch"
)

const (
	quiet    = 100 * time.Millisecond // how long nothing happens before the files are read
	patience = 500 * time.Millisecond // how long to wait for that
)

// Config says what is watched. Its fields are required unless they state a default.
type Config struct {
	Layout Layout
	Rescan time.Duration // how often everything is looked at; 0 stands for 10 s
}

// Watcher watches a directory. It is a task.
type Watcher struct {
	log    *slog.Logger
	config Config
	rules  *configwatch.Watch
	force  chan struct{}
	first  chan struct{}

	// Of Run alone.
	seen    bool // digest is that of what was handed over last
	digest  [sha256.Size]byte
	watched map[string]names
	blind   bool // a directory could not be watched, and this was logged
}

// names are what is watched in a directory; nil is everything.
type names []string

// New makes a Watcher that feeds rules.
func New(log *slog.Logger, c Config, rules *configwatch.Watch) *Watcher {
	if c.Rescan == 0 {
		c.Rescan = 10 * time.Second
	}
	return &Watcher{log: log, config: c, rules: rules, force: make(chan struct{}, 1), first: make(chan struct{})}
}

// String names the task.
func (w *Watcher) String() string { return "rules in " + w.config.Layout.Dir() }

// First is closed once the directory has been read for the first time, whatever came of it.
func (w *Watcher) First() <-chan struct{} { return w.first }

// Reload reads the files again and hands them over even where nothing changed. It does not wait.
func (w *Watcher) Reload() {
	select {
	case w.force <- struct{}{}:
	default: // one is about to happen
	}
}

// Run reads the files, and again when they change, until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	events := make(chan fsnotify.Event)
	var failures chan error
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		w.log.Warn("cannot watch directories, looking at them regularly instead", "every", w.config.Rescan, "error", err)
	} else {
		defer func() { _ = notify.Close() }() // nobody waits for its events any more
		events, failures = notify.Events, notify.Errors
	}
	rescan := time.NewTicker(w.config.Rescan)
	defer rescan.Stop()
	settled := newDebounce()
	defer settled.timer.Stop()

	look := func(force bool) {
		if w.look(notify, force) { // a directory is watched only since: something may have happened before
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
			w.log.Warn("events of directories were lost, looking again", "error", err)
			settled.event(time.Now())
		case <-settled.timer.C:
			settled.since = time.Time{}
			look(false)
		case <-rescan.C:
			look(false)
		case <-w.force:
			look(true)
		}
	}
}

// debounce fires once events have ceased for a while, or have gone on for long.
type debounce struct {
	timer *time.Timer
	since time.Time // of the first event that waits; zero where none does
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

// look reads everything, hands it over where it differs from before, and watches the directories that it found. It is
// true where one was not watched before.
func (w *Watcher) look(notify *fsnotify.Watcher, force bool) bool {
	s := scan(w.config.Layout)
	if digest := s.digest(); force || !w.seen || digest != w.digest {
		w.seen, w.digest = true, digest
		if err := w.rules.Update(s.sources, s.problems); err != nil {
			w.log.Debug("the directory was read in vain", "error", err) // the Watch has logged why
		}
	}
	return notify != nil && w.watch(notify, s)
}

// watch watches what s was read from, and nothing else.
func (w *Watcher) watch(notify *fsnotify.Watcher, s *snapshot) (fresh bool) {
	before := notify.WatchList()
	w.watched = wanted(w.config.Layout, s)
	for dir := range w.watched {
		switch err := notify.Add(dir); {
		case err == nil:
			fresh = fresh || !slices.Contains(before, dir)
		case !w.blind:
			w.blind = true
			w.log.Warn("cannot watch a directory, looking at it regularly instead", "directory", dir, "every", w.config.Rescan, "error", err)
		}
	}
	for _, dir := range before {
		if _, still := w.watched[dir]; !still {
			_ = notify.Remove(dir) // it may be gone already
		}
	}
	return fresh
}

// concerns reports whether an event at path may have changed what is read.
func (w *Watcher) concerns(path string) bool {
	if _, itself := w.watched[path]; itself {
		return true
	}
	watched, ok := w.watched[filepath.Dir(path)]
	return ok && (watched == nil || slices.Contains(watched, filepath.Base(path)))
}

// wanted lists the directories to watch: those that were read; those that symbolic links in them lead to, for the files
// there; and each directory on the way from the parent of the root, for the next step, which may be a link that is
// swapped or a directory that is not there yet.
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

// way lists the paths from the root to the directory, each with its parent resolved. It begins above the root where the
// root's parent does not exist, and ends with the first that does not.
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
