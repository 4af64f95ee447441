package examples_test

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// TestEnvoyQuotas: no configuration of Envoy here has what RLQS does not do.
func TestEnvoyQuotas(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*/envoy.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("finding envoy.yaml: %v in %v", err, files)
	}
	for _, file := range files {
		out, err := exec.CommandContext(t.Context(), binaries.Path(t, "ratelimitd"), "check", "--envoy", file).CombinedOutput()
		if want := regexp.MustCompile(`^` + file + `: ok, [01] filters? of rate_limit_quota, 0 warnings\n$`); err != nil || !want.Match(out) {
			t.Errorf("%v: %s", err, out)
		}
	}
}
