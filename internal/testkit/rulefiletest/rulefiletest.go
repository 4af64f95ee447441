// Package rulefiletest supports tests whose cases are archives of rule files.
package rulefiletest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Golden runs a test for each archive in a folder. answer must return the text of the last file, want, for the other files. If update is
// set, Golden writes the text into the archive, for review before committing it.
func Golden(t *testing.T, folder string, update bool, answer func(a *txtar.Archive) (string, error)) {
	t.Helper()
	for _, name := range Names(t, folder) {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) { golden(t, name, update, answer) })
	}
}

func golden(t *testing.T, name string, update bool, answer func(a *txtar.Archive) (string, error)) {
	t.Helper()
	a, err := txtar.ParseFile(name)
	if err != nil {
		t.Fatal(err)
	}
	last := len(a.Files) - 1
	if last < 0 || a.Files[last].Name != "want" {
		a.Files = append(a.Files, txtar.File{Name: "want"})
		last++
	}
	got, err := answer(&txtar.Archive{Comment: a.Comment, Files: a.Files[:last]})
	if err != nil {
		t.Fatal(err)
	}
	if update {
		a.Files[last].Data = []byte(got)
		if err := os.WriteFile(name, txtar.Format(a), 0o644); err != nil { //nolint:gosec // like any file of the repository
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(a.Files[last].Data), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// Load loads files of rules, which are valid. The first one is called rules.yaml, the others rules2.yaml and so on.
func Load(tb interface {
	Helper()
	Fatalf(format string, args ...any)
}, files ...string,
) *descriptors.Set {
	tb.Helper()
	var sources []descriptors.Source
	for i, text := range files {
		name := "rules.yaml"
		if i > 0 {
			name = fmt.Sprintf("rules%d.yaml", i+1)
		}
		sources = append(sources, descriptors.Source{Name: name, Data: []byte(text)})
	}
	set, problems, err := descriptors.Load(sources, descriptors.Options{})
	if err != nil {
		tb.Fatalf("loading rules: %v\n%v", err, problems)
	}
	return set
}

// Names returns the names of the archives in a folder, of which there is one at least.
func Names(tb testing.TB, folder string) []string {
	tb.Helper()
	names, err := filepath.Glob(filepath.Join(folder, "*.txt"))
	if err != nil || len(names) == 0 {
		tb.Fatalf("no archives in %s: %v", folder, err)
	}
	return names
}

// Options parses the line of a comment that begins with "options:".
func Options(comment []byte) (o descriptors.Options) {
	for line := range bytes.Lines(comment) {
		if words, found := strings.CutPrefix(string(line), "options:"); found {
			o.MergeDomains = strings.Contains(words, "merge")
			o.CalendarMonths = strings.Contains(words, "months")
			o.Strict = strings.Contains(words, "strict")
			if strings.Contains(words, "groups") {
				o.QuotaGroupBy = []string{"model"}
			}
		}
	}
	return o
}

// Sources returns the rule files of an archive.
func Sources(files []txtar.File) (out []descriptors.Source) {
	for _, f := range files {
		if strings.HasSuffix(f.Name, ".yaml") {
			out = append(out, descriptors.Source{Name: f.Name, Data: f.Data})
		}
	}
	return out
}
