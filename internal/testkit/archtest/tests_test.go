package archtest_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestEachTestRuns: `make test` runs every test. No test skips itself but by testkit.NotShort, nothing but `make check`
// passes -short, and what tools/test keeps from the race detector runs without it.
func TestEachTestRuns(t *testing.T) {
	t.Parallel()
	script := text(t, "tools/test")
	list := func(name string) []string {
		m := regexp.MustCompile(`(?m)^` + name + `='(.+)'$`).FindStringSubmatch(script)
		if m == nil {
			t.Fatalf("tools/test has no list %s", name)
		}
		return strings.Split(m[1], "|")
	}
	alone, plain, have, suite := list("alone"), list("plain"), list("have"), list("suite")
	named := slices.Concat(plain, list("players"), list("watched"))
	holders := make(map[string][]string) // packages by the name of a plain test
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			if err == nil && d.IsDir() {
				err = skipDir(path, d.Name())
			}
			return err
		}
		files++
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		dir = filepath.ToSlash(dir)
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		if skips := skipping(file); len(skips) > 0 && filepath.Base(dir) != "testkit" {
			t.Errorf("%s: %v: no test skips; one that needs a process calls testkit.NotShort", path, skips)
		}
		if why := concurrent(file); why != "" && slices.Contains(alone, dir) {
			t.Errorf("%s: %s: tools/test must not keep %s from the race detector", path, why, dir)
		}
		for _, i := range file.Imports {
			if strings.HasSuffix(i.Path.Value, `/backend/backendtest"`) && !slices.Contains(suite, dir) {
				t.Errorf("%s: tools/test does not know that %s plays the suite", path, dir)
			}
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && slices.Contains(named, f.Name.Name) && !slices.Contains(alone, dir) {
				holders[f.Name.Name] = append(holders[f.Name.Name], dir)
			}
		}
		return nil
	})
	if err != nil || files < 100 {
		t.Fatalf("%d files: %v", files, err)
	}
	for _, name := range named {
		if len(holders[name]) == 0 {
			t.Errorf("tools/test names %s, which is nowhere", name)
		}
	}
	for _, name := range plain {
		for _, dir := range holders[name] {
			if !slices.Contains(have, dir) {
				t.Errorf("tools/test runs %s of %s neither with the race detector nor without", name, dir)
			}
		}
	}
	for _, name := range list("turns") {
		if !strings.Contains(text(t, "pkg/backend/backendtest/backendtest.go"), `t.Run("`+name+`"`) {
			t.Errorf("tools/test names the part %s of the suite, which is not there", name)
		}
	}
	for _, dir := range slices.Concat(alone, have, suite, list("servers")) {
		if _, err := os.Stat(filepath.Join(root, dir)); err != nil {
			t.Errorf("tools/test: %v", err)
		}
	}
	recipe := regexp.MustCompile(`(?m)^test:.*\n(\t.*\n)+\n(\.PHONY: test-.*\n(.+\n)+\n?)+`).FindString(text(t, "Makefile"))
	for _, want := range []string{"$(MAKE) -j1 test-race test-plain test-tools", "tools/test race $(PKG)", "tools/test plain $(PKG)"} {
		if !strings.Contains(recipe, want) {
			t.Errorf("make test does not run %s:\n%s", want, recipe)
		}
	}
	for name, commands := range map[string]string{"tools/test": script, "make test": recipe, ".ci/run": text(t, ".ci/run")} {
		if strings.Contains(commands, "-short") {
			t.Errorf("%s passes -short", name)
		}
	}
}

func text(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// skipping returns the methods by which code skips a test.
func skipping(file *ast.File) (names []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if m, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, m.Sel.Name) {
			names = append(names, m.Sel.Name)
		}
		return true
	})
	return names
}

// concurrent returns what in a file starts goroutines or is for several of them, or "". Parallel tests and benchmarks do
// not count: they share only what packages have as state, which is none.
func concurrent(file *ast.File) (why string) {
	for _, i := range file.Imports {
		if regexp.MustCompile(`^"(sync|golang\.org/x/sync/|net/http/httptest)`).MatchString(i.Path.Value) {
			why = "imports " + i.Path.Value
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			why = "has a go statement"
		case *ast.SelectorExpr:
			if n.Sel.Name == "AfterFunc" {
				why = "calls AfterFunc"
			}
		}
		return true
	})
	return why
}
