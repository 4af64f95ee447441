package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/ratelimitd/ratelimitd/internal/rules/ruleschema"
)

const repository = "../.."

// TestLists: each file equals the lines of the code.
func TestLists(t *testing.T) {
	t.Parallel()
	for _, l := range lists() {
		c, err := l.changed(repository, filepath.Join(repository, "api"))
		switch {
		case err != nil:
			t.Errorf("api/%s: %v", l.name, err)
		case len(c.breaks) > 0:
			t.Errorf("api/%s\n%s\n%s", l.name, c, advice)
		case !c.none():
			t.Errorf("api/%s: run make api\n%s", l.name, c)
		case len(c.now) < 20:
			t.Errorf("api/%s has only %d lines: is everything there?", l.name, len(c.now))
		}
	}
}

// TestGuard: in each list, removed lines are rejected unless explicitly accepted, and added lines are written.
func TestGuard(t *testing.T) {
	t.Parallel()
	for _, l := range lists() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, l.name)
			good := read(t, filepath.Join(repository, "api", l.name))

			write(t, path, good+"what was there\n")
			err := run(io.Discard, []list{l}, repository, dir, false)
			if err == nil || !strings.Contains(err.Error(), "- what was there") || !strings.Contains(err.Error(), "make api BREAK=1") {
				t.Errorf("a line that is gone: %v", err)
			}
			if got := read(t, path); got != good+"what was there\n" {
				t.Errorf("what is rejected is written:\n%s", cmp.Diff(good, got))
			}
			if err := run(io.Discard, []list{l}, repository, dir, true); err != nil {
				t.Errorf("accepted on demand: %v", err)
			}
			if diff := cmp.Diff(good, read(t, path)); diff != "" {
				t.Errorf("accepted on demand (-want +got):\n%s", diff)
			}

			lines := strings.SplitAfter(good, "\n")
			write(t, path, lines[0]+strings.Join(lines[2:], ""))
			if err := run(io.Discard, []list{l}, repository, dir, false); err != nil {
				t.Errorf("a new line: %v", err)
			}
			if diff := cmp.Diff(good, read(t, path)); diff != "" {
				t.Errorf("a new line (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRules: removals and restrictions in the schema of rules are breaking. Additions with their own restrictions are
// not.
func TestRules(t *testing.T) {
	t.Parallel()
	type in = map[string]any
	limit := func(root in) in { return part(part(root["$defs"])["rate_limit"]) }
	key := func(root in, name string) in { return part(part(limit(root)["properties"])[name]) }
	for what, tt := range map[string]struct {
		change func(root in)
		breaks string // the first breaking line; empty if compatible
	}{
		"a key is gone":          {func(r in) { delete(part(limit(r)["properties"]), "burst") }, "- rate_limit.burst"},
		"a place is gone":        {func(r in) { delete(part(r["$defs"]), "penalty") }, "- penalty."},
		"a type is gone":         {func(r in) { key(r, "burst")["type"] = "integer" }, "- rate_limit.burst takes null"},
		"a word is gone":         {func(r in) { key(r, "algorithm")["enum"] = []any{"fixed_window"} }, `- rate_limit.algorithm takes "concurrency"`},
		"a larger minimum":       {func(r in) { key(r, "burst")["minimum"] = 2 }, "+ only rate_limit.burst minimum 2"},
		"a key is required":      {func(r in) { limit(r)["required"] = []any{"burst"} }, "+ only rate_limit: with burst"},
		"a new key is required":  {newRequired, "+ only rate_limit: with speed"},
		"a key without effect":   {func(r in) { key(r, "burst")["deprecated"] = true }, "- rate_limit.burst"},
		"a new condition":        {func(r in) { limit(r)["allOf"] = []any{in{"properties": in{"burst": false}}} }, "+ only rate_limit: burst false"},
		"a new key":              {func(r in) { part(limit(r)["properties"])["speed"] = in{"type": "integer", "minimum": 1} }, ""},
		"a new word":             {func(r in) { key(r, "on_failure")["enum"] = append(items(key(r, "on_failure")["enum"]), "guess") }, ""},
		"a new word, conditions": {newAlgorithm, ""},
		"a minimum is gone":      {func(r in) { delete(key(r, "burst"), "minimum") }, ""},
		"other words for people": {func(r in) { key(r, "burst")["description"] = "How much at once." }, ""},
	} {
		var root in
		if err := json.Unmarshal(ruleschema.Schema(), &root); err != nil {
			t.Fatal(err)
		}
		tt.change(root)
		before, err := schemaLines(ruleschema.Schema())
		if err != nil {
			t.Fatal(err)
		}
		now, err := schemaLines([]byte(compact(root)))
		if err != nil {
			t.Fatal(err)
		}
		c := compare(before, now)
		if got := strings.Join(c.breaks, "\n"); (got == "") != (tt.breaks == "") || !strings.Contains(got, tt.breaks) {
			t.Errorf("%s breaks %q, want %q", what, got, tt.breaks)
		}
	}
}

// newRequired adds a required key to limits.
func newRequired(root map[string]any) {
	limit := part(part(root["$defs"])["rate_limit"])
	part(limit["properties"])["speed"] = schema{"type": "integer"}
	limit["required"] = []any{"speed"}
}

// newAlgorithm adds an algorithm that excludes a key.
func newAlgorithm(root map[string]any) {
	limit := part(part(root["$defs"])["rate_limit"])
	algorithm := part(part(limit["properties"])["algorithm"])
	algorithm["enum"] = append(items(algorithm["enum"]), "dice")
	is := schema{"properties": schema{"algorithm": schema{"enum": []any{"dice"}}}, "required": []any{"algorithm"}}
	limit["allOf"] = []any{schema{"if": is, "then": schema{"properties": schema{"burst": false}}}}
}

const original = `package a

import "io"

type T struct {
	A      int
	hidden string
}

func (t *T) Do(n int, w ...io.Writer) (err error) { return nil }

type Doer interface{ Do(n int, w ...io.Writer) error }

type Kind uint8

const (
	First Kind = iota + 1
	Second
)

type List[E any] []E

func Map[E, F any](all []E, f func(E) F) []F { return nil }

var Default = T{}
`

// TestPackages: changes that break programs are breaking, as far as a list can express.
func TestPackages(t *testing.T) {
	t.Parallel()
	exportedOf := func(source string) []string {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "go.mod"), "module example.com/a\n\ngo 1.26\n")
		write(t, filepath.Join(dir, "a.go"), source)
		lines, err := exported(dir, "./...")
		if err != nil {
			t.Fatal(err)
		}
		return lines
	}
	before := exportedOf(original)
	for _, tt := range []struct{ old, new, breaks string }{
		{"A      int", "A      int64", "- example.com/a: type T struct { A int }"},
		{"A      int", "b      int", "- example.com/a: type T struct { A int }"},
		{"hidden string", "hidden []string", "- example.com/a: type T struct is comparable"},
		{"Do(n int, w ...io.Writer) (err error) {", "Do(n int, w io.Writer) (err error) {", "- example.com/a: func (*T) Do(int, ...io.Writer) error"},
		{"(t *T) Do", "(t *T) done", "- example.com/a: func (*T) Do(int, ...io.Writer) error"},
		{"interface{ Do(", "interface{ Undo(); Do(", "- example.com/a: type Doer interface { Do(int, ...io.Writer) error }"},
		{"iota + 1", "iota + 2", "- example.com/a: const First Kind = 1"},
		{"uint8", "uint16", "- example.com/a: type Kind uint8"},
		{"List[E any]", "List[E comparable]", "- example.com/a: type List[E any] []E"},
		{"f func(E) F)", "f func(F) E)", "- example.com/a: func Map[E any, F any]([]E, func(E) F) []F"},
		{"Default = T{}", "Default = &T{}", "- example.com/a: var Default T"},
		{"package a", "// Package a does.\n//\n// Experimental: it may change.\npackage a", "- example.com/a: const First Kind = 1"},

		{"A      int", "A, B   int", ""},
		{"package a", "// Package a does what is not Experimental: at all.\npackage a", ""},
		{"hidden string", "other bool", ""},
		{"n int, w ...io.Writer) (err error) {", "m int, _ ...io.Writer) error {", ""},
		{"Second\n", "Second\n\tThird\n", ""},
		{"type List", "type Set map[int]T\n\ntype List", ""},
		{"(t *T) Do", "(t *T) Undo() {}\n\nfunc (t *T) Do", ""},
		{"f func(E) F)", "g func(e E) F)", ""},
	} {
		if !strings.Contains(original, tt.old) {
			t.Fatalf("the original has no %q", tt.old)
		}
		c := compare(before, exportedOf(strings.Replace(original, tt.old, tt.new, 1)))
		if got := strings.Join(c.breaks, "\n"); got != tt.breaks && (tt.breaks == "" || !strings.Contains(got, tt.breaks)) {
			t.Errorf("%q for %q breaks %q, want %q", tt.new, tt.old, got, tt.breaks)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
