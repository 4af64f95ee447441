package manifests_test

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rhysd/actionlint"
	"sigs.k8s.io/yaml"
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
	check(t, err)
	project, err := actionlint.NewProject(repository)
	check(t, err)
	if problems, err := linter.LintFiles(files, project); err != nil || len(problems) > 0 {
		t.Errorf("%v\n%s", err, said.String())
	}
	pinned := regexp.MustCompile(`^(\./|[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$)`)
	uses := regexp.MustCompile(`(?m)^\s*(?:- )?uses: (.*)$`)
	for _, file := range append(files, filepath.Join(repository, "action.yml")) {
		text, err := os.ReadFile(file)
		check(t, err)
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

// TestReleaseWaits: whatever may write in the pipeline of a release waits for all that CI demands of the commit.
func TestReleaseWaits(t *testing.T) {
	var release struct {
		Permissions map[string]string
		Jobs        map[string]struct {
			Uses, If    string
			Needs       any // a name, or a list of them
			Permissions map[string]string
		}
	}
	text, err := os.ReadFile(filepath.Join(repository, ".github", "workflows", "release.yml"))
	if err == nil {
		err = yaml.Unmarshal(text, &release)
	}
	check(t, err)
	if release.Permissions == nil || len(release.Permissions) > 0 {
		t.Errorf("all jobs of a release have the permissions %v", release.Permissions)
	}
	writes := 0
	for name, j := range release.Jobs {
		if !slices.Contains(slices.Collect(maps.Values(j.Permissions)), "write") {
			continue
		}
		writes++
		needs, ok := j.Needs.([]any)
		if !ok {
			needs = []any{j.Needs}
		}
		if j.If != "" || !slices.ContainsFunc(needs, func(need any) bool {
			before, ok := need.(string)
			return ok && release.Jobs[before].Uses == "./.github/workflows/ci.yml"
		}) {
			t.Errorf("the job %s, which may write, needs %v, if %q", name, j.Needs, j.If)
		}
	}
	if writes == 0 {
		t.Error("no job of a release may write")
	}
}

// TestReleaseOf: the pipeline takes a pre-release, and a patch of an older version, for the latest release of nothing.
func TestReleaseOf(t *testing.T) {
	script, err := filepath.Abs(filepath.Join(repository, "tools", "dist", "release-of"))
	check(t, err)
	dir := t.TempDir()
	git := func(args ...string) {
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v: %s", args, err, out)
		}
	}
	git("init", "--quiet")
	git("commit", "--quiet", "--allow-empty", "--message=a")
	for _, c := range []struct{ tag, want string }{ // tagged in this order
		{"v0.1.0-rc.1", "version=0.1.0-rc.1\nprerelease=true\nlatest=false\n"},
		{"v0.9.0", "version=0.9.0\nprerelease=false\nlatest=true\n"},
		{"v0.10.0-rc1", "version=0.10.0-rc1\nprerelease=true\nlatest=false\n"},
		{"v0.10.0", "version=0.10.0\nprerelease=false\nlatest=true\n"},
		{"v0.9.1", "version=0.9.1\nprerelease=false\nlatest=false\n"},
		{"v1", ""},
		{"v1.02.3", ""},
		{"v1.2.3+build", ""},
	} {
		git("tag", c.tag)
		cmd := exec.CommandContext(t.Context(), script, c.tag)
		cmd.Dir = dir
		out, err := cmd.Output()
		if string(out) != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %v, %q; want %q", c.tag, err, out, c.want)
		}
	}
}

// TestAction runs the script of the GitHub Action.
func TestAction(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	check(t, os.WriteFile(bad, []byte("domain: bad\ndescriptors:\n  - kye: user\n"), 0o600))
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
