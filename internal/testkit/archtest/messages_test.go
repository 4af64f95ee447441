package archtest_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestMessages checks that docs/errors.md has every logged warning and error, and that each of its messages is in the program.
func TestMessages(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs/errors.md"))
	testkit.Check(t, err)
	var rows []string // the messages, up to what differs from case to case
	for _, m := range regexp.MustCompile("(?m)^\\| `(.*?)` \\|").FindAllStringSubmatch(string(page), -1) {
		rows = append(rows, strings.TrimSpace(strings.TrimSuffix(m[1], "…")))
	}
	said := messages(t)
	if len(rows) < 50 || len(said.logged) < 40 {
		t.Fatalf("found only %d rows and %d messages of the log", len(rows), len(said.logged))
	}
	for _, row := range rows {
		if !slices.ContainsFunc(said.texts, func(text string) bool { return strings.Contains(text, row) }) {
			t.Errorf("docs/errors.md has %q, which the program does not say", row)
		}
	}
	for _, text := range said.logged {
		if !slices.ContainsFunc(rows, func(row string) bool { return strings.HasPrefix(text, row) }) {
			t.Errorf("docs/errors.md lacks %q, which is logged as a warning or an error", text)
		}
	}
}

// sayings holds the constant texts of the program.
type sayings struct {
	texts  []string // all
	logged []string // texts logged as warnings or errors
}

// messages collects the texts from the code, excluding tests.
func messages(t *testing.T) (all sayings) {
	t.Helper()
	for _, room := range []string{"cmd", "internal", "pkg"} {
		err := filepath.WalkDir(filepath.Join(root, room), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, all.read)
			return nil
		})
		testkit.Check(t, err)
	}
	return all
}

// read adds the texts of a node.
func (s *sayings) read(n ast.Node) bool {
	if e, ok := n.(ast.Expr); ok {
		if text, ok := constant(e); ok {
			s.texts = append(s.texts, text)
		}
	}
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) == 0 {
		return true
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return true
	}
	args := call.Args
	switch method.Sel.Name {
	case "Warn", "Error":
	case "WarnContext", "ErrorContext", "miswired": // their first argument is a context or a limit of log lines
		args = args[1:]
	case "LogAttrs":
		if level, ok := args[1].(*ast.SelectorExpr); !ok || level.Sel.Name != "LevelWarn" && level.Sel.Name != "LevelError" {
			return true
		}
		args = args[2:]
	default:
		return true
	}
	if text, ok := constant(args[0]); ok {
		s.logged = append(s.logged, text)
	}
	return true
}

// constant returns the value of a string literal, or of a concatenation of literals.
func constant(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		left, ok := constant(e.X)
		right, also := constant(e.Y)
		return left + right, ok && also && e.Op == token.ADD
	default:
		return "", false
	}
}
