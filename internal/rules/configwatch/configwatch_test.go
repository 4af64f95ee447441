package configwatch_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulediff"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// fixture is a Watch with its reported outcomes.
type fixture struct {
	*configwatch.Watch

	log     bytes.Buffer
	told    []int // length of the log at each outcome
	outcome []string
}

// compare is the server's configuration.
func compare(old, set *descriptors.Set) configwatch.Changes { //nolint:ireturn // it is the consumer's own
	if s := rulediff.Summarize(old, set, keptChanges); s != nil {
		return s
	}
	return nil
}

const keptChanges = 100

func newFixture(o descriptors.Options) *fixture {
	f, c := &fixture{}, configwatch.Quiet()
	c.Options, c.Compare = o, compare
	c.Loaded = func(set *descriptors.Set, warnings int, _ bool) {
		f.told = append(f.told, f.log.Len())
		f.outcome = append(f.outcome, strings.Join(set.Files(), " ")+strings.Repeat(" warning", warnings))
	}
	c.Invalid = func(error) {
		f.told = append(f.told, f.log.Len())
		f.outcome = append(f.outcome, "invalid")
	}
	f.Watch = configwatch.New(slog.New(slog.NewTextHandler(&f.log, nil)), c)
	return f
}

func (f *fixture) logged() string {
	defer f.log.Reset()
	return f.log.String()
}

func source(name, text string) descriptors.Source {
	return descriptors.Source{Name: name, Data: []byte(text)}
}

func login(limit string) descriptors.Source {
	return source("a.yaml", "domain: shop\ndescriptors:\n  - key: login\n    rate_limit: {unit: minute, requests_per_unit: "+limit+"}\n")
}

func TestTheLastGoodSetStays(t *testing.T) {
	t.Parallel()
	f := newFixture(descriptors.Options{})
	if f.Rules() != nil {
		t.Fatal("rules before the first update")
	}
	if err := f.Update(nil, nil); !errors.Is(err, configwatch.ErrNoSources) {
		t.Errorf("nothing: %v, want ErrNoSources", err)
	}
	if err := f.Update([]descriptors.Source{login("x")}, nil); err == nil || f.Rules() != nil {
		t.Errorf("bad first set: %v, rules %v", err, f.Rules())
	}
	f.logged()
	if err := f.Update([]descriptors.Source{login("3")}, nil); err != nil {
		t.Fatal(err)
	}
	if log := f.logged(); !strings.Contains(log, "rules loaded") || !strings.Contains(log, "rules=1 files=1") {
		t.Errorf("first set: log\n%s", log)
	}
	good := f.Rules()
	for name, update := range map[string]func() error{
		"one bad file of two": func() error {
			return f.Update([]descriptors.Source{login("5"), source("b.yaml", "domain: [")}, nil)
		},
		"one unreadable file of two": func() error {
			return f.Update([]descriptors.Source{login("5")}, descriptors.Problems{{File: "b.yaml", Text: "permission denied"}})
		},
		"nothing": func() error { return f.Update(nil, nil) },
		"only something to warn of": func() error {
			return f.Update(nil, descriptors.Problems{{File: "b.yaml", Text: "a symbolic link", Warning: true}})
		},
	} {
		if err := update(); err == nil {
			t.Errorf("%s: taken", name)
		}
		if f.Rules() != good {
			t.Errorf("%s: the last good set is gone", name)
		}
		if log := f.logged(); !strings.Contains(log, "invalid rules") || !strings.Contains(log, "the last good ones") {
			t.Errorf("%s: log\n%s", name, log)
		}
	}
	want := []string{"invalid", "invalid", "a.yaml", "invalid", "invalid", "invalid", "invalid"}
	if d := cmp.Diff(want, f.outcome); d != "" {
		t.Errorf("outcomes (-want +got):\n%s", d)
	}
}

func TestEveryProblemIsLogged(t *testing.T) {
	t.Parallel()
	f := newFixture(descriptors.Options{})
	err := f.Update([]descriptors.Source{login("x"), source("b.yaml", "domain: [")}, descriptors.Problems{{File: "c.yaml", Text: "permission denied"}})
	if err == nil {
		t.Fatal("taken")
	}
	log := f.logged()
	for _, part := range []string{"c.yaml: permission denied", "a.yaml:4", "b.yaml:", "problems=3", "serving=none"} {
		if !strings.Contains(log, part) {
			t.Errorf("the log lacks %q:\n%s", part, log)
		}
	}
}

func TestChangesAreTold(t *testing.T) {
	t.Parallel()
	f := newFixture(descriptors.Options{})
	update := func(sources ...descriptors.Source) {
		t.Helper()
		if err := f.Update(sources, nil); err != nil {
			t.Fatal(err)
		}
	}
	update(login("3"))
	f.logged()
	update(login("5"))
	log := f.logged()
	for _, part := range []string{"rules changed", "login", "3", "→", "5", "per minute"} {
		if !strings.Contains(log, part) {
			t.Errorf("the log lacks %q:\n%s", part, log)
		}
	}
	update(login("5"))
	if log := f.logged(); !strings.Contains(log, "level=INFO") || !strings.Contains(log, "nothing changed") {
		t.Errorf("the same again: log\n%s", log)
	}
	var many strings.Builder
	many.WriteString("domain: shop\ndescriptors:\n")
	for _, c := range "abcdefghijklmnopqrstuvwxyz" {
		many.WriteString("  - {key: " + string(c) + ", rate_limit: {unit: day, requests_per_unit: 1}}\n")
	}
	update(source("a.yaml", many.String()))
	if log := f.logged(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "; and 7 more") { // 26 added, one removed
		t.Errorf("many changes: log\n%s", log)
	}
}

func TestWarningsAreLoggedAndCounted(t *testing.T) {
	t.Parallel()
	twice := source("a.yaml", "domain: shop\ndescriptors:\n  - key: a\n    key: login\n    rate_limit: {unit: day, requests_per_unit: 1}\n")
	f := newFixture(descriptors.Options{})
	if err := f.Update([]descriptors.Source{twice}, nil); err != nil {
		t.Fatal(err)
	}
	if log := f.logged(); !strings.Contains(log, "warning about the rules") || !strings.Contains(log, "a.yaml:4") {
		t.Errorf("log\n%s", log)
	}
	if d := cmp.Diff([]string{"a.yaml warning"}, f.outcome); d != "" {
		t.Errorf("outcome (-want +got):\n%s", d)
	}
	if err := newFixture(descriptors.Options{Strict: true}).Update([]descriptors.Source{twice}, nil); err == nil {
		t.Error("strict: taken")
	}
}

// TestTheLogComesLast: callbacks run before the log reports an outcome, so a logged outcome is in effect.
func TestTheLogComesLast(t *testing.T) {
	t.Parallel()
	f := newFixture(descriptors.Options{})
	for _, limit := range []string{"x", "3", "5", "5", "x"} {
		_ = f.Update([]descriptors.Source{login(limit)}, nil) // the limit x is invalid
		if n := f.told[len(f.told)-1]; n != 0 || f.logged() == "" {
			t.Errorf("limit %s: the log had %d bytes before it was told, want none, and some afterwards", limit, n)
		}
	}
}

func TestAPanicIsAProblem(t *testing.T) {
	t.Parallel()
	f := newFixture(descriptors.Options{})
	if err := f.Update([]descriptors.Source{login("3")}, nil); err != nil {
		t.Fatal(err)
	}
	good := f.Rules()
	f.PanicOnLoad()
	err := f.Update([]descriptors.Source{login("5")}, nil)
	if err == nil || !strings.Contains(err.Error(), "index out of range") {
		t.Errorf("Update = %v, want an error with the panic", err)
	}
	if f.Rules() != good {
		t.Error("the last good set is gone")
	}
	if d := cmp.Diff([]string{"a.yaml", "invalid"}, f.outcome); d != "" {
		t.Errorf("outcomes (-want +got):\n%s", d)
	}
}

// TestAPanicOfTheComparison: rules are used even if comparing them panics, and the log reports it.
func TestAPanicOfTheComparison(t *testing.T) {
	t.Parallel()
	f := newFixture(descriptors.Options{})
	for range 2 {
		if err := f.Update([]descriptors.Source{login("3")}, nil); err != nil {
			t.Fatal(err)
		}
		f.PanicOnComparison()
	}
	log := f.logged()
	for _, part := range []string{"cannot tell what the new rules change", "index out of range", "configwatch_test.go"} {
		if !strings.Contains(log, part) || strings.Contains(log, "nothing changed") {
			t.Errorf("the log lacks %q, or says that nothing changed:\n%s", part, log)
		}
	}
	if o := f.Accepted(); o != f.Last() || o.Changes != nil || f.Changed() != nil {
		t.Errorf("accepted %+v", o)
	}
	if d := cmp.Diff([]string{"a.yaml", "a.yaml"}, f.outcome); d != "" {
		t.Errorf("outcomes (-want +got):\n%s", d)
	}
}

func TestWhatTheStoreCannotDoIsInvalid(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	c := configwatch.Quiet()
	c.Check = func(set *descriptors.Set) (all descriptors.Problems) {
		for r := range set.Rules() {
			if r.RateLimits.At(0).RequestsPerUnit > 5 {
				all = append(all, descriptors.Problem{File: r.File, Line: r.Line, Path: r.Path, Text: "too many for this store"})
			}
		}
		return all
	}
	w := configwatch.New(slog.New(slog.NewTextHandler(&log, nil)), c)
	if err := w.Update([]descriptors.Source{login("5")}, nil); err != nil {
		t.Fatal(err)
	}
	good := w.Rules()
	err := w.Update([]descriptors.Source{login("6")}, nil)
	const want = "a.yaml:3: shop.login: too many for this store"
	if err == nil || err.Error() != want || !strings.Contains(log.String(), want) {
		t.Errorf("Update = %v, want %q, and in the log:\n%s", err, want, log.String())
	}
	if w.Rules() != good {
		t.Error("the last good set is gone")
	}
}

// lines returns the changes of an outcome.
func lines(o *configwatch.Outcome) []string {
	if o.Changes == nil {
		return nil
	}
	all, _ := o.Changes.Lines(keptChanges)
	return all
}

// TestChangesAreBounded: of very many changes, the most dangerous are kept, and the number of all. Rules are in use before their
// changes are known.
func TestChangesAreBounded(t *testing.T) {
	t.Parallel()
	const rules = 5000
	text := func(n int, limit string) descriptors.Source {
		var b strings.Builder
		b.WriteString("domain: shop\ndescriptors:\n")
		for i := range n {
			fmt.Fprintf(&b, "  - {key: k%d, rate_limit: {unit: day, requests_per_unit: %s}}\n", i, limit)
		}
		return source("a.yaml", b.String())
	}
	var w *configwatch.Watch
	var known []*configwatch.Outcome
	c := configwatch.Quiet()
	c.Compare = compare
	c.Loaded = func(*descriptors.Set, int, bool) { known = append(known, w.Changed()) }
	w = configwatch.New(slog.New(slog.DiscardHandler), c)
	for _, s := range []descriptors.Source{text(rules, "1"), text(rules-1, "2"), text(rules-1, "2")} {
		if err := w.Update([]descriptors.Source{s}, nil); err != nil {
			t.Fatal(err)
		}
	}
	o := w.Changed()
	changes := o.Changes.(*rulediff.Summary)
	first, all := changes.In(nil)
	if len(first) != keptChanges || all.String() != "5000 changes: 1 opens a limit, 4999 raise a limit" || first[0].Kind != rulediff.Removed {
		t.Errorf("%d of %s, beginning with %+v", len(first), &all, first[0])
	}
	if known[1] != nil || known[2] != o {
		t.Errorf("when rules were put in force, the last changes were %v", known)
	}
	if first, all := changes.In(func(domain string) bool { return domain != "shop" }); len(first) != 0 || all.Total() != 0 {
		t.Errorf("in another domain: %v, %s", first, &all)
	}
}

// TestOutcomes: outcomes of updates and of tries are available afterwards.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	f := newFixture(descriptors.Options{})
	if f.Accepted() != nil || f.Rejected() != nil || f.Last() != nil {
		t.Error("outcomes before the first update")
	}
	update := func(limit string) *configwatch.Outcome {
		sources := []descriptors.Source{login(limit)}
		before, told := f.Last(), len(f.outcome)
		tried := f.Try(sources, nil)
		if f.Last() != before || len(f.outcome) != told {
			t.Errorf("trying %s did something", limit)
		}
		_ = f.Update(sources, nil) // the outcome has its error
		o := f.Last()
		if before == nil { // everything is new, which a stored outcome need not list
			if lines, more := tried.Changes.Lines(9); len(lines) != 2 || more != 0 {
				t.Errorf("the first rules change %q and %d more", lines, more)
			}
			tried.Changes = nil
		}
		if d := cmp.Diff(lines(tried), lines(o)); d != "" || tried.Version != o.Version || len(tried.Problems) != len(o.Problems) || (tried.Err == nil) != (o.Err == nil) {
			t.Errorf("%s: tried %+v, done %+v", limit, tried, o)
		}
		return o
	}
	first, same, other, bad, again := update("3"), update("3"), update("5"), update("x"), update("5")
	if first.Changes != nil || same.Changes != nil || same.Since != first.Since || same.Version != first.Version || same == first {
		t.Errorf("the same twice: %+v, %+v", first, same)
	}
	if len(lines(other)) != 1 || other.Version == first.Version || other.Since != other.At || again.Since != other.Since {
		t.Errorf("another: %+v, and again after bad ones: %+v", other, again)
	}
	if f.Changed() != other {
		t.Errorf("the last changes are those of %+v, want %+v", f.Changed(), other)
	}
	if bad.Err == nil || len(bad.Problems) != 1 || bad.Problems[0].Line != 4 || bad != f.Rejected() || again != f.Accepted() {
		t.Errorf("bad: %+v", bad)
	}
}
