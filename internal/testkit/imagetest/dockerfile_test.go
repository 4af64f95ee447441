package imagetest_test

import (
	"debug/elf"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// repository is the root of the checkout, the context of the build.
const repository = "../../.."

// instruction is an instruction of a Dockerfile, such as RUN and its command.
type instruction struct{ name, args string }

// stage consists of the instructions after a FROM.
type stage struct {
	base, name   string
	instructions []instruction
}

// all returns the arguments of the stage's instructions called name.
func (s stage) all(name string) []string {
	var args []string
	for _, i := range s.instructions {
		if i.name == name {
			args = append(args, i.args)
		}
	}
	return args
}

// one returns the argument of the only instruction called name.
func (s stage) one(t *testing.T, name string) string {
	t.Helper()
	args := s.all(name)
	if len(args) != 1 {
		t.Fatalf("stage %s has %d instructions %s, want 1", s.base, len(args), name)
	}
	return args[0]
}

// stages parses the Dockerfile.
func stages(t *testing.T) []stage {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(repository, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(raw), "")
	text = strings.ReplaceAll(text, "\\\n", " ")
	var list []stage
	for line := range strings.Lines(text) {
		name, args, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case name == "":
		case name == "FROM":
			base, as, _ := strings.Cut(args, " AS ")
			list = append(list, stage{base: base, name: as})
		case len(list) == 0:
			t.Fatalf("the Dockerfile begins with %s, not with FROM", name)
		default:
			s := &list[len(list)-1]
			s.instructions = append(s.instructions, instruction{name, strings.TrimSpace(args)})
		}
	}
	return list
}

// TestFinalStage checks what the image guarantees to its users.
func TestFinalStage(t *testing.T) {
	t.Parallel()
	all := stages(t)
	if len(all) != 2 {
		t.Fatalf("%d stages, want one that builds and one that is left", len(all))
	}
	final := all[1]
	if final.base != "scratch" {
		t.Errorf("the image stands on %s; a base other than scratch has to be named by its digest", final.base)
	}
	if got, want := final.one(t, "COPY"), "--from="+all[0].name+" /out /"; got != want {
		t.Errorf("COPY %s, want %s", got, want)
	}
	user, _, _ := strings.Cut(final.one(t, "USER"), ":")
	if uid, err := strconv.Atoi(user); err != nil || uid < 10_000 {
		t.Errorf("USER is %s; want a number of at least 10000", user)
	}
	if got, want := final.one(t, "EXPOSE"), "8080 8081 6070 9090"; got != want {
		t.Errorf("EXPOSE %s, want %s", got, want)
	}
	var entrypoint []string
	if err := json.Unmarshal([]byte(final.one(t, "ENTRYPOINT")), &entrypoint); err != nil || !slices.Equal(entrypoint, []string{"/bin/ratelimitd"}) {
		t.Errorf("ENTRYPOINT is %q, %v; want the server alone, not by way of a shell", entrypoint, err)
	}
	if runs := final.all("RUN"); len(runs) > 0 {
		t.Errorf("scratch has nothing that could run %q", runs)
	}
}

// build runs the steps of the build stage, with absolute paths moved to a temporary directory, and returns a directory with the files
// that the final stage copies.
func build(t *testing.T) (root string) {
	t.Helper()
	testkit.NotShort(t)
	dir := t.TempDir()
	src, out := filepath.Join(dir, "src"), filepath.Join(dir, "out")
	s := stages(t)[0]
	if got := s.one(t, "WORKDIR"); got != "/src" {
		t.Fatalf("WORKDIR is %s; this test knows /src", got)
	}
	if got := s.one(t, "COPY"); got != ". ." {
		t.Fatalf("COPY %s; this test knows the whole context", got)
	}
	copyContext(t, src)
	env := append(os.Environ(), "GOFLAGS=")
	env = append(env, s.all("ENV")...)
	mount := regexp.MustCompile(`--mount=\S+\s+`)
	for _, run := range s.all("RUN") {
		cmd := exec.Command("sh", "-e", "-c", strings.ReplaceAll(mount.ReplaceAllString(run, ""), "/out", out))
		cmd.Dir, cmd.Env = src, env
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("RUN %s: %v\n%s", run, err, output)
		}
	}
	return out
}

// copyContext copies the repository without the files in .dockerignore.
func copyContext(t *testing.T, to string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(repository, ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	ignored := strings.Fields(string(raw))
	err = filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return present(err) // git creates and removes files at any time, also while other tests build the server
		}
		name, err := filepath.Rel(repository, path)
		if err != nil {
			return err
		}
		if slices.Contains(ignored, name) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return present(err)
		}
		info, err := d.Info()
		if err != nil {
			return present(err)
		}
		return os.WriteFile(filepath.Join(to, name), data, info.Mode().Perm()|0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// present returns err, or nil if a file no longer exists.
func present(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// checkStatic fails the test for a program that needs a dynamic linker, because the image has none.
func checkStatic(t *testing.T, path string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("%s is not static", path)
		}
	}
}
