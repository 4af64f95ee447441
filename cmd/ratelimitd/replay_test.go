package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestReplayDocs runs the console blocks of docs/replay.md at the top of the checkout, with its first YAML as candidate.yaml, and
// compares what they print with what it shows.
func TestReplayDocs(t *testing.T) {
	testkit.NotShort(t)
	raw, err := os.ReadFile(filepath.Join(repository, "docs/replay.md"))
	if err != nil {
		t.Fatal(err)
	}
	script := strings.NewReplacer("\nratelimitd ", "\nexec ratelimitd ", "\nshows ", "\ncmp stdout ").Replace(readmeScript(string(raw)))
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

func TestProgressText(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"[###############...............]  50 %  1000 lines, 500 per second, 2s left": progressText(50, 100, 1000, 2*time.Second),
		"[##############################] 100 %  7 lines, 7 per second, 0s left":      progressText(200, 100, 7, time.Second),
		"1000 lines, 500 per second": progressText(50, 0, 1000, 2*time.Second),
		"0 lines, 0 per second":      progressText(0, 100, 0, 0),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
