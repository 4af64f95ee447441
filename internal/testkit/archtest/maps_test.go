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

// TestMapsAreTrue checks the maps for newcomers in CONTRIBUTING.md and docs/design.md. The named files exist, even if only the end of a
// path is given, and for `name` in `file`, or `name` (`file`), the file declares the name.
func TestMapsAreTrue(t *testing.T) {
	t.Parallel()
	path := regexp.MustCompile("`((?:cmd|internal|pkg|proto|config|docs|tools|examples)/[\\w./-]+)`")
	place := regexp.MustCompile("`(\\w+)`(?: here and| there)? in `([\\w./-]+\\.go)`")
	end := regexp.MustCompile("`([\\w/-]+\\.(?:go|lua|proto))`")
	beside := regexp.MustCompile("`(\\w+)` \\(`([\\w/-]+\\.go)`\\)")
	files := sources(t)
	found := 0
	for _, doc := range []string{"CONTRIBUTING.md", "docs/design.md"} {
		text, err := os.ReadFile(filepath.Join(root, doc))
		testkit.Check(t, err)
		for _, m := range path.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s names %s, which does not exist", doc, m[1])
			}
		}
		for _, m := range end.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil && files[m[1]] == "" {
				t.Errorf("%s names %s, and no path ends so", doc, m[1])
			}
		}
		for _, m := range beside.FindAllStringSubmatch(string(text), -1) {
			found++
			if !regexp.MustCompile(`(?m)^(func (\([^)]*\) )?|type )` + m[1] + `\b`).MatchString(files[m[2]]) {
				t.Errorf("%s says that %s is in %s; nothing of that name is declared there", doc, m[1], m[2])
			}
		}
		for _, m := range place.FindAllStringSubmatch(string(text), -1) {
			found++
			code, err := os.ReadFile(filepath.Join(root, m[2]))
			if err != nil {
				t.Errorf("%s: %v", doc, err)
				continue
			}
			if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + m[1] + `[\[(]`).Match(code) {
				t.Errorf("%s says that %s is in %s; that has no such function", doc, m[1], m[2])
			}
		}
	}
	if found < 10 {
		t.Fatalf("found only %d functions in the maps: %s", found, strings.TrimSpace(place.String()))
	}
}

// sources returns the texts of this repository's source files by each end of their paths: a.go, b/a.go and so on. Texts of several paths
// with the same end are joined.
func sources(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipDir(path, d.Name())
		}
		if !slices.Contains([]string{".go", ".lua", ".proto"}, filepath.Ext(path)) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		for rest, more := filepath.ToSlash(rel), true; more; _, rest, more = strings.Cut(rest, "/") {
			all[rest] += string(text) + "\n"
		}
		return nil
	})
	testkit.Check(t, err)
	return all
}
