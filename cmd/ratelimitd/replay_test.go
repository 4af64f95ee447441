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
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

// TestReplayDocs runs the console blocks of docs/replay.md at the top of the checkout, with its first YAML as candidate.yaml, and
// compares what they print with what it shows.
func TestReplayDocs(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	raw, err := os.ReadFile(filepath.Join(repository, "docs/replay.md"))
	testkit.Check(t, err)
	script := strings.NewReplacer("\nratelimitd ", "\nexec ratelimitd ", "\ncat ", "\nexec cat ", "\nshows ", "\ncmp stdout ").Replace(readmeScript(string(raw)))
	yaml := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindStringSubmatch(string(raw))
	if strings.Count(script, "exec ratelimitd replay ") < 2 || yaml == nil {
		t.Fatalf("docs/replay.md has fewer than two commands, or no YAML:\n%s", script)
	}
	dir := t.TempDir()
	certstest.Write(t, filepath.Join(dir, "replay.txtar"), []byte(script+"-- candidate.yaml --\n"+yaml[1]))
	top, err := filepath.Abs(repository)
	testkit.Check(t, err)
	testscript.Run(t, testscript.Params{Dir: dir, Setup: func(env *testscript.Env) error {
		return os.Symlink(filepath.Join(top, "examples"), filepath.Join(env.WorkDir, "examples"))
	}})
}

// TestReplayInterrupted: an interrupt ends an endless stream, whether something comes or not, and what came is reported.
func TestReplayInterrupted(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	certstest.Write(t, rules, []byte("domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]\n"))
	var out testkit.Buffer
	cmd := exec.CommandContext(t.Context(), shipped.Path(t, "ratelimitd"), "replay", "--config", rules, "-")
	cmd.Stdout, cmd.Stderr = &out, &out
	in, err := cmd.StdinPipe()
	testkit.Check(t, err)
	testkit.Check(t, cmd.Start())
	const batch = 50_000 // lines: more than a pipe holds, so that the process is reading once they are written
	if _, err := io.WriteString(in, "time,domain,descriptor\n"+strings.Repeat("1795773600,d,a=b\n", batch)); err != nil {
		t.Fatal(err)
	}
	testkit.Check(t, cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err != nil || !regexp.MustCompile(`(?m)^\d+ requests from (.|\n)*^d\.a `).MatchString(out.String()) {
		t.Errorf("%v:\n%s", err, out.String())
	}
}
