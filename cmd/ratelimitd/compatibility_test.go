package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

var rewrite = flag.Bool("rewrite", false, "write docs/differences.md and the figures of docs/sizing.md")

// part is a part of a document: a heading, and the rows of the table below it.
type part struct {
	title string
	rows  [][]string
}

// parts reads a document. Rows must have three cells.
func parts(t *testing.T, name string) (all []part) {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join(repository, "docs", name))
	testkit.Check(t, err)
	for _, section := range regexp.MustCompile(`(?m)^###? `).Split(string(doc), -1)[1:] {
		title, text, _ := strings.Cut(section, "\n")
		p := part{title: title}
		lines := slices.Collect(strings.Lines(text))
		for i, line := range lines {
			if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| ---") || i+1 < len(lines) && strings.HasPrefix(lines[i+1], "| ---") {
				continue
			}
			cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "| "), "|"), " | ")
			for k := range cells {
				cells[k] = strings.TrimSpace(cells[k])
			}
			if len(cells) != 3 {
				t.Errorf("%s, %q: want three cells in %s", name, title, line)
				continue
			}
			p.rows = append(p.rows, cells)
		}
		if len(p.rows) > 0 { // or it is a heading over others
			all = append(all, p)
		}
	}
	return all
}

// TestCompatibility: each row of docs/compatibility.md says whether it is the same; if it is not, the row says how it
// differs, why, or which setting changes it.
func TestCompatibility(t *testing.T) {
	t.Parallel()
	for _, p := range parts(t, "compatibility.md") {
		for _, row := range p.rows {
			if !slices.Contains([]string{"same", "better", "different"}, row[1]) || row[1] != "same" && row[2] == "" {
				t.Errorf("%q: a row needs what is observed, same, better or different, and for the latter two what there is to know: %s", p.title, row)
			}
		}
	}
}

// TestDifferences: docs/differences.md has the rows of docs/compatibility.md that are different; run with -rewrite, or make docs, to
// write it.
//
//go:generate go test -run ^(TestDifferences|TestSizing)$ . -rewrite
func TestDifferences(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- rows: written by make docs from compatibility.md -->\n", "<!-- end of rows -->\n"
	path := filepath.Join(repository, "docs", "differences.md")
	page, err := os.ReadFile(path)
	testkit.Check(t, err)
	before, rest, begun := strings.Cut(string(page), begin)
	_, after, ended := strings.Cut(rest, end)
	if !begun || !ended {
		t.Fatalf("%s has no lines %q and %q", path, begin, end)
	}
	var rows strings.Builder
	for _, p := range parts(t, "compatibility.md") {
		different := slices.DeleteFunc(slices.Clone(p.rows), func(row []string) bool { return row[1] != "different" })
		if len(different) == 0 {
			continue
		}
		_, title, _ := strings.Cut(p.title, " ")
		fmt.Fprintf(&rows, "\n## %s\n\n| envoyproxy/ratelimit | ratelimitd |\n| --- | --- |\n", title)
		for _, row := range different {
			fmt.Fprintf(&rows, "| %s | %s |\n", row[0], row[2])
		}
	}
	want := before + begin + rows.String() + "\n" + end + after
	if *rewrite {
		testkit.Check(t, os.WriteFile(path, []byte(want), 0o644))
		return
	}
	if diff := cmp.Diff(want, string(page)); diff != "" {
		t.Errorf("docs/differences.md is not made of docs/compatibility.md: run make docs (-want +got):\n%s", diff)
	}
}

// TestCompatibilityIsComplete: docs/compatibility.md has the parts of docs/observables.md, and in each of them a row for
// each line there, and no row without one.
func TestCompatibilityIsComplete(t *testing.T) {
	t.Parallel()
	answers := make(map[string]part)
	for _, p := range parts(t, "compatibility.md") {
		answers[p.title] = p
	}
	observables := parts(t, "observables.md")
	if len(observables) == 0 {
		t.Fatal("docs/observables.md has no parts")
	}
	for _, p := range observables {
		answered := make(map[string]bool)
		number, _, _ := strings.Cut(p.title, " ")
		for i, row := range p.rows {
			if want := fmt.Sprintf("%s-%d", number, i+1); row[0] != want {
				t.Errorf("observables.md has the number %s where %s is next", row[0], want)
			}
			found := answers[p.title].named(row[2])
			if len(found) != 1 {
				t.Errorf("%s, %s: compatibility.md has %d rows in %q whose first cell has %q, want one: %q", row[0], row[1], len(found), p.title, row[2], found)
				continue
			}
			answered[found[0]] = true
		}
		for _, row := range answers[p.title].rows {
			if !answered[row[0]] {
				t.Errorf("compatibility.md, %q: no line of observables.md is for the row %q; add one", p.title, row[0])
			}
		}
		delete(answers, p.title)
	}
	for title := range answers {
		t.Errorf("observables.md has no part %q, as compatibility.md has", title)
	}
}

// named returns the first cells that have words in them, or the one that is nothing else.
func (p part) named(words string) (found []string) {
	for _, row := range p.rows {
		if row[0] == words {
			return []string{words}
		}
		if strings.Contains(row[0], words) {
			found = append(found, row[0])
		}
	}
	return found
}
