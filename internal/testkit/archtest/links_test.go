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

// TestLinks follows each relative link of each document to its file, and to its heading. Elsewhere, such as in help texts,
// comments and examples, what reads like a document below docs has to be one.
func TestLinks(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^()\s]+)\)`)
	named := regexp.MustCompile(`\bdocs/[\w/-]+\.(?:md|json|png)\b`)
	links, names := 0, 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (slices.Contains([]string{".git", "node_modules"}, d.Name()) || path == filepath.Join(root, "bin") || path == filepath.Join(root, "dist")) {
			return fs.SkipDir
		}
		if d.IsDir() || !read(path) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, name := range named.FindAllString(string(text), -1) {
			names++
			if _, err := os.Stat(filepath.Join(root, name)); err != nil {
				t.Errorf("%s names %s, which does not exist", path, name)
			}
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			file, heading, _ := strings.Cut(m[1], "#")
			target := filepath.Join(filepath.Dir(path), file)
			if file == "" {
				target = path
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which does not exist", path, m[1])
			} else if heading != "" && !slices.Contains(headings(t, target), heading) {
				t.Errorf("%s links to %s, which has no such heading", path, m[1])
			}
		}
		return nil
	})
	testkit.Check(t, err)
	if links < 100 || names < 50 {
		t.Errorf("found only %d links and %d names", links, names)
	}
}

// read reports whether TestLinks reads a file: all text that is written by hand.
func read(path string) bool {
	return slices.Contains([]string{".md", ".go", ".lua", ".proto", ".yaml", ".yml", ".toml", ".conf", ".service", ".txtar"}, filepath.Ext(path)) ||
		slices.Contains([]string{"Makefile", "Dockerfile"}, filepath.Base(path))
}

// headings are what links to the headings of a document end with.
func headings(t *testing.T, document string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(document)
	testkit.Check(t, err)
	dropped := regexp.MustCompile(`[^\pL\pN _-]`)
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
		all = append(all, strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}
