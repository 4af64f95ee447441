package archtest_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// Patterns of fault numbers.
var (
	inFunc  = regexp.MustCompile(`^Test((?:_?[FGHXY]\d+b?)+)(?:[_A-Z]|$)`)
	inFile  = regexp.MustCompile(`^((?:[FGHXY]|[fghxy])\d+b?)[_.]`)
	inStory = regexp.MustCompile(`(?m)^#.*\b[FGHXY]\d+b?:.*$`) // a comment in a script, with numbers before colons
	inRun   = regexp.MustCompile(`\bRun\("([FGHXY]\d+b?)\b`)   // a subtest
	number  = regexp.MustCompile(`[FGHXYfghxy]\d+b?`)
	check   = regexp.MustCompile(`(?:^|[ ,])([A-E]\d+)\b`) // a check of make chaos
)

// TestFaultsAreListed checks that docs/faults.md explains each fault number in a test's name, in a row that names the test, and that it
// names only existing tests and checks of make chaos.
func TestFaultsAreListed(t *testing.T) {
	t.Parallel()
	rows := faults(t)
	tests := namedTests(t)
	checks := text(t, "docs/reliability.md")
	for number, shown := range rows {
		if len(shown) == 0 {
			t.Errorf("docs/faults.md, row %s: it names no test", number)
		}
		for _, name := range shown {
			if strings.Contains(checks, "\n| ["+name+"](") {
				continue
			}
			if !slices.ContainsFunc(tests, func(s test) bool { return covers(name, s.name) }) {
				t.Errorf("docs/faults.md, row %s: there is no test %s", number, name)
			}
		}
	}
	numbered := 0
	for _, s := range tests {
		for _, number := range s.numbers {
			numbered++
			switch shown, listed := rows[number]; {
			case !listed:
				t.Errorf("%s: %s is named by fault %s, which has no row in docs/faults.md", s.path, s.name, number)
			case s.name != "" && !slices.ContainsFunc(shown, func(name string) bool { return covers(name, s.name) }):
				t.Errorf("%s: row %s of docs/faults.md does not name %s", s.path, number, s.name)
			}
		}
	}
	if numbered < len(rows) {
		t.Fatalf("found only %d tests that are named by a number", numbered)
	}
}

// faults returns the rows of docs/faults.md: the names in the last cell, by number.
func faults(t *testing.T) map[string][]string {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join(root, "docs", "faults.md"))
	testkit.Check(t, err)
	rows := map[string][]string{}
	for line := range strings.Lines(string(doc)) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), " | ")
		n := strings.TrimPrefix(cells[0], "| ")
		if n == cells[0] || number.FindString(n) != n {
			continue
		}
		if _, twice := rows[n]; twice || len(cells) != 4 {
			t.Errorf("docs/faults.md: row %s is there twice, or has not four cells", n)
		}
		rows[n] = quoted(cells[len(cells)-1])
		for _, m := range check.FindAllStringSubmatch(strings.TrimSuffix(cells[len(cells)-1], " |"), -1) {
			rows[n] = append(rows[n], m[1])
		}
	}
	return rows
}

// covers reports whether a name in the document, which may end with *, matches the name of a test.
func covers(name, test string) bool {
	begin, all := strings.CutSuffix(name, "*")
	return test == name || all && strings.HasPrefix(test, begin)
}

// test is a test function, or a file in a testdata directory. A subtest, or a part of a file, has no name.
type test struct {
	name, path string
	numbers    []string // fault numbers
}

// namedTests returns all tests of the module.
func namedTests(t *testing.T) []test {
	t.Helper()
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	var all []test
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == "testdata" {
				return nil
			}
			return skipDir(path, d.Name())
		}
		script := strings.HasSuffix(path, ".txt") || strings.HasSuffix(path, ".txtar")
		if !script && !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if script {
			all = append(all, test{d.Name(), path, numbers(inFile.FindString(d.Name()))})
			for _, line := range inStory.FindAllString(string(text), -1) {
				all = append(all, test{"", path, numbers(line[:strings.LastIndex(line, ":")])})
			}
			return nil
		}
		for _, m := range function.FindAllStringSubmatch(string(text), -1) {
			all = append(all, test{m[1], path, numbers(inFunc.FindString(m[1]))})
		}
		for _, m := range inRun.FindAllStringSubmatch(string(text), -1) {
			all = append(all, test{"", path, numbers(m[1])})
		}
		return nil
	})
	testkit.Check(t, err)
	return all
}

// numbers returns the fault numbers in a name, as spelled in documents: F1 for F01.
func numbers(name string) []string {
	var all []string
	for _, n := range number.FindAllString(name, -1) {
		all = append(all, strings.ToUpper(n[:1])+strings.TrimLeft(n[1:], "0"))
	}
	return all
}
