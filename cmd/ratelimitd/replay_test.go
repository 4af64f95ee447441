package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestReplayDocs runs the console blocks of docs/replay.md in the root of the checkout, with its first YAML block as
// candidate.yaml, and compares the outputs with the document.
func TestReplayDocs(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	raw, err := os.ReadFile(filepath.Join(repository, "docs/replay.md"))
	if err != nil {
		t.Fatal(err)
	}
	script := strings.NewReplacer("\nratelimitd ", "\nexec ratelimitd ", "\ncat ", "\nexec cat ", "\nshows ", "\ncmp stdout ").Replace(readmeScript(string(raw)))
	yaml := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindStringSubmatch(string(raw))
	if strings.Count(script, "exec ratelimitd replay ") < 2 || yaml == nil {
		t.Fatalf("docs/replay.md has fewer than two commands, or no YAML:\n%s", script)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "replay.txtar"), []byte(script+"-- candidate.yaml --\n"+yaml[1]), 0o600); err != nil {
		t.Fatal(err)
	}
	top, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{Dir: dir, Setup: func(env *testscript.Env) error {
		return os.Symlink(filepath.Join(top, "examples"), filepath.Join(env.WorkDir, "examples"))
	}})
}

// TestReplayInterrupted: an interrupt ends an endless stream, active or idle, and the requests so far are reported.
func TestReplayInterrupted(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(rules, []byte("domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out testkit.Buffer
	cmd := exec.CommandContext(t.Context(), shipped.Path(t, "ratelimitd"), "replay", "--config", rules, "-")
	cmd.Stdout, cmd.Stderr = &out, &out
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	const batch = 50_000 // lines: more than a pipe holds, so the process is reading when all are written
	if _, err := io.WriteString(in, "time,domain,descriptor\n"+strings.Repeat("1795773600,d,a=b\n", batch)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || !regexp.MustCompile(`(?m)^\d+ requests from (.|\n)*^d\.a `).MatchString(out.String()) {
		t.Errorf("%v:\n%s", err, out.String())
	}
}
