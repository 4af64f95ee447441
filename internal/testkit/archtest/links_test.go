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

// TestLinks checks that each relative link in a document leads to a file, and to its heading. In other texts, such as help, comments and
// examples, a name that looks like a document below docs must be one.
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

// read reports whether TestLinks checks a file: any hand-written text.
func read(path string) bool {
	return slices.Contains([]string{".md", ".go", ".lua", ".proto", ".yaml", ".yml", ".toml", ".conf", ".service", ".txtar"}, filepath.Ext(path)) ||
		slices.Contains([]string{"Makefile", "Dockerfile"}, filepath.Base(path))
}

// headings returns the anchors of the headings of a document.
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
