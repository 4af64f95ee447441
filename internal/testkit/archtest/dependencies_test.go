package archtest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestDependenciesAreExplained checks that section 10 of docs/design.md has a reason for exactly the modules that go.mod requires
// directly, in at most 20 families.
func TestDependenciesAreExplained(t *testing.T) {
	t.Parallel()
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	testkit.Check(t, err)
	direct := map[string]bool{}
	for line := range strings.Lines(string(mod)) {
		words := strings.Fields(line)
		if strings.HasPrefix(line, "\t") && len(words) > 1 && !strings.Contains(line, "// indirect") {
			direct[words[0]] = true
		}
	}
	if len(direct) < 10 {
		t.Fatalf("found only %d modules in go.mod", len(direct))
	}
	doc, err := os.ReadFile(filepath.Join(root, "docs", "design.md"))
	testkit.Check(t, err)
	const head = "| family | modules | why it is here |\n| --- | --- | --- |\n"
	_, table, found := strings.Cut(string(doc), head)
	if !found {
		t.Fatalf("docs/design.md has no table that begins with %q", head)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	families, explained := 0, map[string]bool{}
	for line := range strings.Lines(table) {
		families++
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.TrimSpace(cells[3]) == "" {
			t.Errorf("docs/design.md: a family needs a name, its modules and a reason: %q", line)
			continue
		}
		for _, module := range quoted(cells[2]) {
			if explained[module] {
				t.Errorf("docs/design.md explains %s twice", module)
			}
			if !direct[module] {
				t.Errorf("docs/design.md explains %s, which go.mod does not require directly", module)
			}
			explained[module] = true
		}
	}
	for module := range direct {
		if !explained[module] {
			t.Errorf("go.mod requires %s, which has no reason in section 10 of docs/design.md", module)
		}
	}
	if families > 20 {
		t.Errorf("%d families of dependencies, want at most 20", families)
	}
}
