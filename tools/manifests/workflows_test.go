package manifests_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rhysd/actionlint"
)

const repository = "../.."

// TestWorkflows checks the pipelines with actionlint, and that each action is named by its digest.
func TestWorkflows(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(repository, ".github", "workflows", "*.yml"))
	if err != nil || len(files) < 3 {
		t.Fatalf("found %q, %v", files, err)
	}
	var said bytes.Buffer
	linter, err := actionlint.NewLinter(&said, &actionlint.LinterOptions{LogWriter: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	project, err := actionlint.NewProject(repository)
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := linter.LintFiles(files, project); err != nil || len(problems) > 0 {
		t.Errorf("%v\n%s", err, said.String())
	}
	pinned := regexp.MustCompile(`^(\./|[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$)`)
	uses := regexp.MustCompile(`(?m)^\s*(?:- )?uses: (.*)$`)
	for _, file := range append(files, filepath.Join(repository, "action.yml")) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "go-version-file: go.mod") {
			t.Errorf("%s: go.mod names the oldest Go that will do, without the patches since; name the release, and check-latest", file)
		}
		for _, use := range uses.FindAllStringSubmatch(string(text), -1) {
			if !pinned.MatchString(use[1]) {
				t.Errorf("%s: %s has no digest with the version behind it", file, use[1])
			}
		}
	}
}

// TestAction runs the script of the GitHub Action.
func TestAction(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("domain: bad\ndescriptors:\n  - kye: user\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(repository, "config", "example")
	sarif := filepath.Join(dir, "log.sarif")
	for _, c := range []struct {
		name string
		env  []string
		ok   bool
		says string
	}{
		{"good rules", []string{"RULES=" + good, "STRICT=true"}, true, ""},
		{"bad rules", []string{"RULES=" + good + " " + bad, "SARIF=" + sarif}, false, "::error file=" + bad + ",line=3"},
		{"no rules", nil, false, "rules must name a directory"},
		{"neither true nor false", []string{"RULES=" + good, "MERGE=yes"}, false, "merge must be true or false, not yes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), filepath.Join(repository, "tools", "action", "check"))
			cmd.Env = append(os.Environ(), append(c.env, "RUNNER_TEMP="+dir)...)
			out, err := cmd.CombinedOutput()
			if (err == nil) != c.ok || !strings.Contains(string(out), c.says) {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	var log struct{ Runs []struct{ Results []any } }
	text, err := os.ReadFile(sarif)
	if err == nil {
		err = json.Unmarshal(text, &log)
	}
	if err != nil || len(log.Runs) != 1 || len(log.Runs[0].Results) == 0 {
		t.Errorf("the SARIF log is %s, %v", text, err)
	}
}
