package archtest_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMapsAreTrue follows the maps for newcomers, in CONTRIBUTING.md and docs/design.md: the files that they name exist, and
// where they say `name` in `file`, the file declares that.
func TestMapsAreTrue(t *testing.T) {
	t.Parallel()
	path := regexp.MustCompile("`((?:cmd|internal|pkg|proto|config|docs|tools|examples)/[\\w./-]+)`")
	place := regexp.MustCompile("`(\\w+)`(?: here and| there)? in `([\\w./-]+\\.go)`")
	found := 0
	for _, doc := range []string{"CONTRIBUTING.md", "docs/design.md"} {
		text, err := os.ReadFile(filepath.Join(root, doc))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range path.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s names %s, which does not exist", doc, m[1])
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
