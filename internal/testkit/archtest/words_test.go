package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestTextsUseTheGlossary checks that the program's texts contain none of the words and phrases in docs/glossary.md and Prose.yml. make
// lint checks comments and pages, but not strings.
func TestTextsUseTheGlossary(t *testing.T) {
	t.Parallel()
	var terms struct {
		Swap       map[string]string
		Exceptions []string
	}
	for _, name := range []string{"Terms", "Prose"} {
		data, err := os.ReadFile("../../../tools/vale/styles/Glossary/" + name + ".yml")
		testkit.Check(t, err)
		if err := yaml.Unmarshal(data, &terms); err != nil { // which adds to the map
			t.Fatal(err)
		}
	}
	code := regexp.MustCompile("`[^`]*`") // make lint ignores code too
	dropped := map[*regexp.Regexp]string{}
	for pattern, instead := range terms.Swap {
		dropped[regexp.MustCompile("(?i)"+pattern)] = instead
	}
	texts := 0
	for _, dir := range []string{"../../../cmd", "../../../internal", "../../../pkg"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(filepath.Dir(path), "test") {
				return err
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, l := range sentences(file) {
				texts++
				text, _ := strconv.Unquote(l.Value)
				text = code.ReplaceAllString(text, "")
				for word, instead := range dropped {
					found := word.FindString(text)
					if found != "" && !slices.Contains(terms.Exceptions, strings.ToLower(found)) {
						t.Errorf("%s says %q: want %s", files.Position(l.Pos()), found, instead)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if texts < 1000 || len(dropped) < 10 {
		t.Errorf("%d texts are held to %d words: want more", texts, len(dropped))
	}
}

// sentences returns the strings of a file that consist of several words, which excludes names.
func sentences(file *ast.File) (all []*ast.BasicLit) {
	ast.Inspect(file, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING && strings.Contains(l.Value, " ") {
			all = append(all, l)
		}
		return true
	})
	return all
}
