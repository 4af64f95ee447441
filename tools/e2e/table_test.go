package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// row is a row of the table.
type row struct {
	example

	ours, theirs result
}

// result is what came of a case.
type result struct {
	said  []string
	bad   bool
	weak  bool // the case did not come about as it should have, so that nothing is shown
	other bool // with another server, which is not judged
}

func (r result) cells() string {
	if len(r.said) == 0 {
		return "| – | – "
	}
	verdict := "yes"
	switch {
	case r.bad:
		verdict = "**no**"
	case r.weak:
		verdict = "not shown"
	}
	text := strings.Join(strings.Fields(strings.Join(r.said, "; ")), " ") // a row is one line
	return "| " + strings.ReplaceAll(text, "|", "¦") + " | " + verdict + " "
}

// table writes results as a table of Markdown, after a line that says what was played.
func table(rows []row) string {
	through := "the filter as `internal/envoytest` plays it, no real Envoy"
	if *envoy != "" {
		through = "Envoy " + release()
	}
	met, all := 0, new(strings.Builder)
	for _, r := range rows {
		fmt.Fprintf(all, "| %s | %s %s", r.name, r.want, r.ours.cells())
		if *peer != "" {
			fmt.Fprint(all, r.theirs.cells())
		}
		fmt.Fprintln(all, "|")
		if !r.ours.bad && !r.ours.weak {
			met++
		}
	}
	head, rule := "| case | expected | ratelimitd | met |", "| --- | --- | --- | --- |"
	if *peer != "" {
		head, rule = head+" the other server | met |", rule+" --- | --- |"
	}
	return fmt.Sprintf("%d of %d cases met, through %s, with seed %d:\n\n%s\n%s\n%s", met, len(rows), through, *seed, head, rule, all)
}

const begin, end = "<!-- cases: written by make e2e WRITE=1 -->\n", "<!-- end of cases -->"

// rewrite replaces the table of a page.
func rewrite(page, table string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return fmt.Errorf("%s has no lines %q and %q, between which the table belongs", page, strings.TrimSpace(begin), end)
	}
	return os.WriteFile(page, []byte(before+begin+"\n"+table+"\n"+end+after), 0o600) // it exists, and keeps its mode
}

// TestDocumented: docs/envoy.md has a row for each case, with what is expected now.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/envoy.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range examples() {
		if row := fmt.Sprintf("\n| %s | %s | ", x.name, x.want); !x.real && !strings.Contains(string(text), row) {
			t.Errorf("docs/envoy.md has no row %q: run make e2e WRITE=1", strings.TrimSpace(row))
		}
	}
}
