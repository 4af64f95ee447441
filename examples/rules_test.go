package examples_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/rules/rulefmt"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// load loads rules, which must have no problems, not even warnings.
func load(t *testing.T, o descriptors.Options, sources ...descriptors.Source) *descriptors.Set {
	t.Helper()
	set, problems, err := descriptors.Load(sources, o)
	testkit.Check(t, err)
	for _, p := range problems {
		t.Error(p)
	}
	return set
}

// source returns a file of rules.
func source(t *testing.T, path string) descriptors.Source {
	t.Helper()
	raw, err := os.ReadFile(path)
	testkit.Check(t, err)
	return descriptors.Source{Name: path, Data: raw}
}

// TestShippedRules loads each directory of rules in this repository as a server would, and looks whether each file names
// the schema for editors, and is formatted.
func TestShippedRules(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{
		"compose/rules/*.yaml", "contour/rules/*.yaml", "emissary/rules/*.yaml", "envoy/rules/*.yaml", "envoy-llm/rules/*.yaml", "kgateway/rules/*.yaml",
		"../config/example/*.yaml", "../config/*.yaml",
	} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Errorf("no rules at %s: %v", pattern, err)
		}
		var sources []descriptors.Source
		for _, f := range files {
			s := source(t, f)
			sources = append(sources, s)
			line, _, _ := strings.Cut(string(s.Data), "\n")
			schema, ok := strings.CutPrefix(line, "# yaml-language-server: $schema=")
			if _, err := os.Stat(filepath.Join(filepath.Dir(f), schema)); !ok || err != nil {
				t.Errorf("%s begins with %q, which names no schema: %v", f, line, err)
			}
			if formatted, problems := rulefmt.Format(s); len(problems) > 0 || !bytes.Equal(formatted, s.Data) {
				t.Errorf("%s is not as ratelimitd fmt writes it: %v", f, problems)
			}
		}
		load(t, descriptors.Options{Strict: true}, sources...)
	}
}
