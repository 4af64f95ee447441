package file_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch"
	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch/file"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rules returns a file with one domain.
func rules(domain string) string {
	return "domain: " + domain + "\ndescriptors:\n  - {key: k, rate_limit: {unit: day, requests_per_unit: 1}}\n"
}

// watched is a directory that is watched, and the outcomes of its loads.
type watched struct {
	*file.Watcher

	rules *configwatch.Watch
	mu    sync.Mutex
	loads []string // the domains of each set that was accepted, or "invalid"
	at    []time.Time
	news  chan struct{}
	seen  int // the number of loads that the test has waited for
}

// watch watches a layout until the test ends. If the kernel's events have to suffice, the next scan is an hour away.
func watch(t *testing.T, l file.Layout, rescan time.Duration) *watched {
	t.Helper()
	w := &watched{news: make(chan struct{}, 1)}
	note := func(outcome string) {
		w.mu.Lock()
		w.loads, w.at = append(w.loads, outcome), append(w.at, time.Now())
		w.mu.Unlock()
		select {
		case w.news <- struct{}{}:
		default:
		}
	}
	log := slog.New(slog.DiscardHandler)
	c := configwatch.Quiet()
	c.Loaded = func(set *descriptors.Set, _ int, _ bool) {
		var domains []string
		for d := range set.Domains() {
			domains = append(domains, d.Name)
		}
		note(strings.Join(domains, " "))
	}
	c.Invalid = func(error) { note("invalid") }
	w.rules = configwatch.New(log, c)
	w.Watcher = file.New(log, file.Config{Layout: l, Rescan: rescan}, w.rules)
	testkit.Run(t, w.Run)
	<-w.First()
	return w
}

// outcomes returns the outcomes of the loads so far.
func (w *watched) outcomes() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.loads...)
}

// wants waits for another load with this outcome, which others may precede.
func (w *watched) wants(t *testing.T, want string) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		all := w.outcomes()
		if i := slices.Index(all[w.seen:], want); i >= 0 {
			w.seen += i + 1
			return
		}
		select {
		case <-w.news:
		case <-late:
			t.Fatalf("loads %q; want %q after the first %d", all, want, w.seen)
		}
	}
}

// stays checks that there is no load for a while, even though something happened.
func (w *watched) stays(t *testing.T, want string) {
	t.Helper()
	before := len(w.outcomes())
	<-time.After(700 * time.Millisecond)
	if all := w.outcomes(); len(all) != before || all[before-1] != want {
		t.Errorf("loads %q; want none after %q", all, want)
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestY25FilesComeChangeAndGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.yaml", rules("one"))
	w := watch(t, file.Layout{Root: dir}, time.Hour)
	w.wants(t, "one")
	write(t, dir, "a.yaml", rules("two"))
	w.wants(t, "two")
	write(t, dir, "sub/deep/b.yaml", rules("three"))
	w.wants(t, "two three")
	write(t, dir, "sub/deep/b.yaml", rules("four"))
	w.wants(t, "two four")
	must(t, os.RemoveAll(filepath.Join(dir, "sub")))
	w.wants(t, "two")
	write(t, dir, "sub/c.yaml", rules("five"))
	w.wants(t, "two five")
	must(t, os.Rename(filepath.Join(dir, "sub"), filepath.Join(dir, "bus")))
	w.wants(t, "two five") // now from another file
	write(t, dir, "bus/c.yaml", rules("six"))
	w.wants(t, "two six")
}

func TestY25HalfWrittenFileAndRenameSwap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.yaml", rules("one"))
	w := watch(t, file.Layout{Root: dir}, time.Hour)
	w.wants(t, "one")
	good := w.rules.Rules()
	write(t, dir, "a.yaml", rules("two")[:40])
	w.wants(t, "invalid")
	if w.rules.Rules() != good {
		t.Error("the last good set is gone")
	}
	outside := t.TempDir()
	write(t, outside, "a.yaml", rules("two"))
	must(t, os.Rename(filepath.Join(outside, "a.yaml"), filepath.Join(dir, "a.yaml")))
	w.wants(t, "two")
}

// configMap lays out and updates a directory as Kubernetes does with a mounted ConfigMap.
func configMap(t *testing.T, dir, version, domain string) {
	t.Helper()
	write(t, dir, version+"/rules.yaml", rules(domain))
	link(t, dir, "..data_tmp", version)
	must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	if _, err := os.Lstat(filepath.Join(dir, "rules.yaml")); err != nil {
		link(t, dir, "rules.yaml", "..data/rules.yaml")
	}
}

func TestY25ConfigMap(t *testing.T) {
	t.Parallel()
	for i := range 4 {
		l := file.Layout{Subdirectory: "ratelimit", AppDirectory: "config", WatchRoot: i&1 > 0, IgnoreDotFiles: i&2 > 0}
		t.Run(fmt.Sprintf("watch_root=%t,ignore_dot_files=%t", l.WatchRoot, l.IgnoreDotFiles), func(t *testing.T) {
			t.Parallel()
			l.Root = t.TempDir()
			dir := filepath.Join(l.Root, "ratelimit", "config")
			configMap(t, dir, "..2026_01", "one")
			w := watch(t, l, time.Hour)
			w.wants(t, "one")
			configMap(t, dir, "..2026_02", "two")
			must(t, os.RemoveAll(filepath.Join(dir, "..2026_01")))
			w.wants(t, "two")
			configMap(t, dir, "..2026_03", "three")
			w.wants(t, "three")
		})
	}
}

func TestY25SwapOfTheRoot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "v1/app/config/a.yaml", rules("one"))
	write(t, dir, "v2/app/config/a.yaml", rules("two"))
	link(t, dir, "current", "v1")
	w := watch(t, file.Layout{Root: filepath.Join(dir, "current"), Subdirectory: "app", AppDirectory: "config", WatchRoot: true}, time.Hour)
	w.wants(t, "one")
	link(t, dir, "next", "v2")
	must(t, os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "current")))
	w.wants(t, "two")
	write(t, dir, "v2/app/config/a.yaml", rules("three"))
	w.wants(t, "three")
	write(t, dir, "v1/app/config/a.yaml", rules("four")) // no longer watched
	w.stays(t, "three")
}

func TestY25DeletedDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "root/config/a.yaml", rules("one"))
	w := watch(t, file.Layout{Root: filepath.Join(dir, "root"), AppDirectory: "config"}, time.Hour)
	w.wants(t, "one")
	good := w.rules.Rules()
	must(t, os.RemoveAll(filepath.Join(dir, "root")))
	w.wants(t, "invalid")
	if w.rules.Rules() != good {
		t.Error("the last good set is gone")
	}
	write(t, dir, "root/config/a.yaml", rules("two"))
	w.wants(t, "two")
}

func TestY25TargetOfALink(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	write(t, outside, "a.yaml", rules("one"))
	link(t, dir, "a.yaml", filepath.Join(outside, "a.yaml"))
	w := watch(t, file.Layout{Root: dir}, time.Hour)
	w.wants(t, "one")
	write(t, outside, "a.yaml", rules("two"))
	w.wants(t, "two")
	write(t, outside, "b.yaml", rules("three"))
	w.stays(t, "two")
}

func TestY25HundredWritesPerSecond(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.yaml", rules("d"))
	w := watch(t, file.Layout{Root: dir}, time.Hour)
	begin := time.Now()
	for i := range 150 {
		write(t, dir, "a.yaml", rules(fmt.Sprintf("d%d", i)))
		time.Sleep(10 * time.Millisecond)
	}
	took := time.Since(begin)
	w.wants(t, "d149")
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.at); n < 3 || float64(n) > 2+10*(took+time.Second).Seconds() {
		t.Errorf("%d loads in %v: want some, and at most 10 a second", n, took)
	}
	for i := 2; i < len(w.at); i++ {
		if gap := w.at[i].Sub(w.at[i-1]); gap < 90*time.Millisecond {
			t.Errorf("two loads within %v", gap)
		}
	}
}

func TestY25LostEventsAreMadeUpFor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "v1/config/a.yaml", rules("one"))
	write(t, dir, "v2/config/a.yaml", rules("two"))
	link(t, dir, "current", "v1")
	link(t, dir, "root", "current") // swapping a link that another link leads to causes no event
	w := watch(t, file.Layout{Root: filepath.Join(dir, "root", "config")}, 50*time.Millisecond)
	w.wants(t, "one")
	must(t, os.Remove(filepath.Join(dir, "current")))
	link(t, dir, "current", "v2")
	w.wants(t, "two")
}

func TestReloadOnRequest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.yaml", rules("one"))
	w := watch(t, file.Layout{Root: dir}, 20*time.Millisecond)
	w.wants(t, "one")
	w.stays(t, "one")
	w.Reload()
	w.wants(t, "one")
}

// Who waits for a reload, or tries one, learns of the files as they were when it was asked for.
func TestReloadNow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.yaml", rules("one"))
	w := watch(t, file.Layout{Root: dir}, time.Hour)
	first := w.rules.Accepted()
	for i := range 20 {
		write(t, dir, "a.yaml", rules(fmt.Sprintf("d%d", i)))
		tried, err := w.Try()
		must(t, err, tried.Err, w.ReloadNow(t.Context()))
		if w.rules.Rules().Domain(fmt.Appendf(nil, "d%d", i)) == nil {
			t.Fatal("the wait was over before the files were read")
		}
		if got := w.rules.Accepted(); got.Version != tried.Version || got.Version == first.Version || w.rules.Last() != got {
			t.Fatalf("accepted %+v after %+v had been tried", got, tried)
		}
	}
	write(t, dir, "a.yaml", "domain: [")
	good := w.rules.Accepted()
	must(t, w.ReloadNow(t.Context()))
	if tried, err := w.Try(); err != nil || tried.Err == nil || w.rules.Accepted() != good {
		t.Errorf("trying bad rules: %+v, %v; in use %+v", tried, err, w.rules.Accepted())
	}
	if bad := w.rules.Last(); bad.Err == nil || len(bad.Problems) != 1 || bad.Problems[0].Line != 1 || bad != w.rules.Rejected() {
		t.Errorf("the last outcome is %+v", bad)
	}
}

func TestY26EmptyAndBadSets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := watch(t, file.Layout{Root: dir}, time.Hour)
	w.wants(t, "invalid")
	if w.rules.Rules() != nil {
		t.Error("rules from an empty directory")
	}
	write(t, dir, "a.yaml", "domain: [")
	w.wants(t, "invalid")
	write(t, dir, "b.yaml", rules("good"))
	w.wants(t, "invalid")
	if w.rules.Rules() != nil {
		t.Error("rules from one good and one bad file")
	}
	must(t, os.Remove(filepath.Join(dir, "a.yaml")))
	w.wants(t, "good")
	good := w.rules.Rules()
	must(t, os.Remove(filepath.Join(dir, "b.yaml")))
	w.wants(t, "invalid")
	if w.rules.Rules() != good {
		t.Error("the last good set is gone with the directory's files")
	}
}
