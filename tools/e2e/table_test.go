package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
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
	through := "Envoy " + release()
	met, lines := 0, new(strings.Builder)
	for _, r := range rows {
		fmt.Fprintf(lines, "| %s | %s %s", r.name, r.want, r.ours.cells())
		if *peer != "" {
			fmt.Fprint(lines, r.theirs.cells())
		}
		fmt.Fprintln(lines, "|")
		if !r.ours.bad && !r.ours.weak {
			met++
		}
	}
	head, rule := "| case | expected | ratelimitd | met |", "| --- | --- | --- | --- |"
	if *peer != "" {
		head, rule = head+" the other server | met |", rule+" --- | --- |"
	}
	return fmt.Sprintf("%d of %d cases met, through %s, with seed %d:\n\n%s\n%s\n%s", met, len(rows), through, *seed, head, rule, lines)
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

// TestDocumented: docs/envoy-results.md has a row for each case, with what is expected now.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/envoy-results.md")
	testkit.Check(t, err)
	for _, x := range examples(whole) {
		if row := fmt.Sprintf("\n| %s | %s | ", x.name, x.want); !strings.Contains(string(text), row) {
			t.Errorf("docs/envoy-results.md has no row %q: run make e2e WRITE=1", strings.TrimSpace(row))
		}
	}
}

// TestNotMet: the row of a case that is not met says how calls ended.
func TestNotMet(t *testing.T) {
	testkit.NotShort(t)
	if *envoy == "" {
		t.Skip("there is no Envoy")
	}
	r := result{other: true} // is not judged
	play(t, example{play: func(w *world) {
		_, redis := w.redis()
		s := w.serve(perUser("error"), redis)
		p := w.proxy(setup{example: "envoy"}, w.upstream(hello), s)
		s.Kill()
		a := w.ask(p, "/", "alice")
		w.got(a.status == http.StatusTooManyRequests, "%d", a.status)
	}}, *server, &r)
	const want = "| **200**; proxy 1: cluster.ratelimitd."
	if got := r.cells(); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "| **no** ") {
		t.Errorf("the row has %q, want %q and **no**", got, want)
	}
}

func TestRewrite(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	for _, c := range []struct{ text, want, fails string }{
		{"a\n" + begin + "old\n" + end + "\nb\n", "a\n" + begin + "\nnew\n" + end + "\nb\n", ""},
		{"a\n", "a\n", "has no lines"},
		{"a\n" + begin + "b\n", "a\n" + begin + "b\n", "has no lines"},
	} {
		testkit.Check(t, os.WriteFile(page, []byte(c.text), 0o600))
		err := rewrite(page, "new")
		if got, _ := os.ReadFile(page); string(got) != c.want || (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%q became %q, %v; want %q", c.text, got, err, c.want)
		}
	}
}

func TestVersion(t *testing.T) {
	for printed, want := range map[string]string{
		"\nenvoy  version: 1f3ab2/1.40.0/Clean/RELEASE/BoringSSL\n":                              "1.40.0",
		"\n/opt/func-e/versions/1.38.0/bin/envoy  version: 1f3ab2/1.41.0-dev/Modified/DEBUG/x\n": "1.41.0",
		"\n/opt/1.38.0/envoy of our own\n":                                                       "",
	} {
		if got := versionIn(printed); got != want {
			t.Errorf("of %q: %q, want %q", printed, got, want)
		}
	}
}
