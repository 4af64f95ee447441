package file_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch/file"
)

// write writes a file below dir, and makes the directories on its path.
func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// link makes a symbolic link below dir.
func link(t *testing.T, dir, name, target string) {
	t.Helper()
	if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

// names returns the paths of the files read, relative to dir.
func names(t *testing.T, dir string, l file.Layout) (names []string) {
	t.Helper()
	sources, problems := file.Read(l)
	for _, s := range sources {
		rel, err := filepath.Rel(dir, s.Name)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, rel)
	}
	for _, p := range problems {
		names = append(names, strings.ReplaceAll(p.String(), dir+"/", ""))
	}
	return names
}

func TestLayouts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{
		"app/config/a.yaml", "app/config/deep/er/b", "app/config/.hidden/c", "app/config/.d", "app/config/..2026/e", "app/config/..f",
		"app/config.yaml", "app/config.d/g", "app/configs/h", "app/other/i", "app/j", "config/k", "app/nested/config/l",
	} {
		write(t, dir, name, "domain: x")
	}
	outside := t.TempDir()
	write(t, outside, "m.yaml", "domain: x")
	link(t, dir, "app/config/m", filepath.Join(outside, "m.yaml"))
	link(t, dir, "app/config/..data", "..2026")
	link(t, dir, "current", "app")
	inside := []string{"app/config/.d", "app/config/.hidden/c", "app/config/a.yaml", "app/config/deep/er/b", "app/config/m"}
	visible := []string{"app/config/a.yaml", "app/config/deep/er/b", "app/config/m"}
	for _, tt := range []struct {
		name   string
		layout file.Layout
		want   []string
	}{
		{"directory", file.Layout{Root: dir, Subdirectory: "app", AppDirectory: "config"}, inside},
		{"directory without dot files", file.Layout{Root: dir, Subdirectory: "app", AppDirectory: "config", IgnoreDotFiles: true}, visible},
		{
			"root",
			file.Layout{Root: dir, Subdirectory: "app", AppDirectory: "config", WatchRoot: true},
			append(append([]string{}, inside...), "app/config.d/g", "app/config.yaml"),
		},
		{
			"root without a sub-directory",
			file.Layout{Root: dir + "/app", AppDirectory: "config", WatchRoot: true, IgnoreDotFiles: true},
			append(append([]string{}, visible...), "app/config.d/g", "app/config.yaml"),
		},
		{"root with a nested directory", file.Layout{Root: dir, Subdirectory: "app", AppDirectory: "nested/config", WatchRoot: true}, []string{"app/nested/config/l"}},
		{"everything", file.Layout{Root: dir, Subdirectory: "app/other"}, []string{"app/other/i"}},
		{
			"through a link",
			file.Layout{Root: dir + "/current", AppDirectory: "config", IgnoreDotFiles: true},
			[]string{"current/config/a.yaml", "current/config/deep/er/b", "current/config/m"},
		},
	} {
		if d := cmp.Diff(tt.want, names(t, dir, tt.layout)); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
}

func TestLinksToDirectoriesAreNotFollowed(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	write(t, dir, "a.yaml", "domain: x")
	write(t, outside, "b.yaml", "domain: x")
	link(t, dir, "more", outside)
	want := []string{"a.yaml", "more: warning: a symbolic link to a directory, which is not followed"}
	if d := cmp.Diff(want, names(t, dir, file.Layout{Root: dir})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestY28_Secrets: files with a secret of the server, and files with a key, are never read through any path.
func TestY28_Secrets(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	write(t, outside, "token", "secret")
	write(t, outside, "rules.yaml", "domain: x")
	link(t, outside, "other", "token")
	link(t, dir, "a", filepath.Join(outside, "token"))
	link(t, dir, "b", filepath.Join(outside, "other"))
	if err := os.Link(filepath.Join(outside, "token"), filepath.Join(dir, "c")); err != nil {
		t.Fatal(err)
	}
	link(t, dir, "d", filepath.Join(outside, "rules.yaml"))
	write(t, dir, "e", "# mine\n-----BEGIN EC PRIVATE KEY-----\nsecret")
	write(t, dir, "f", "domain: x # -----BEGIN\n")
	l := file.Layout{Root: dir, Secrets: map[string]string{"TOKEN": filepath.Join(outside, "other"), "NONE": filepath.Join(outside, "none")}}
	want := []string{
		"d", "f", "a: this is the file of TOKEN, which holds a secret", "b: this is the file of TOKEN, which holds a secret",
		"c: this is the file of TOKEN, which holds a secret", "e: a key or a certificate in PEM form, not a file of rules",
	}
	if d := cmp.Diff(want, names(t, dir, l)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if files, problems := file.List(l); len(files) != 3 || len(problems) != 3 {
		t.Errorf("listed: %v, %v", files, problems)
	}
}

func TestNothingToReadIsAProblem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, tt := range []struct {
		layout file.Layout
		want   string
	}{
		{file.Layout{Root: dir}, "no rules here: the directory has no files"},
		{file.Layout{Root: dir, AppDirectory: "config", WatchRoot: true}, "next to it as config.*"},
		{file.Layout{Root: dir, AppDirectory: "/config", WatchRoot: true}, "and /config begins with a slash: write config"},
		{file.Layout{Root: dir, AppDirectory: "config"}, "no such file or directory: rules are read from RUNTIME_ROOT/"},
	} {
		sources, problems := file.Read(tt.layout)
		if len(sources) > 0 || len(problems) != 1 || problems[0].Warning || !strings.Contains(problems[0].Text, tt.want) {
			t.Errorf("%+v: %q; want %q", tt.layout, problems, tt.want)
		}
	}
}

func TestReadFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.yaml", "domain: x")
	path := filepath.Join(dir, "a.yaml")
	sources, problems := file.ReadFile(path)
	if len(sources) != 1 || sources[0].Name != path || string(sources[0].Data) != "domain: x" || problems != nil {
		t.Errorf("%v, %v", sources, problems)
	}
	if _, problems := file.ReadFile(path + "x"); len(problems) != 1 {
		t.Errorf("missing file: %v", problems)
	}
}

// sparse makes a file of the given size without content on disk.
func sparse(t *testing.T, path string, size int64) {
	t.Helper()
	write(t, filepath.Dir(path), filepath.Base(path), "")
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}

// endless returns the error for /proc/kmsg, which only root can open, and in some containers no user.
func endless(t *testing.T) string {
	t.Helper()
	f, err := os.Open("/proc/kmsg")
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err.Error()
	}
	_ = f.Close()
	return "its content arrives bit by bit"
}

func TestY19FilesThatAreNotRead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		make func(t *testing.T, path string)
		want string
	}{
		{"one byte too many", func(t *testing.T, path string) { t.Helper(); sparse(t, path, file.MaxFileSize+1) }, "10485761 bytes: a file of rules may have at most 10485760"},
		{"sparse gigabyte", func(t *testing.T, path string) { t.Helper(); sparse(t, path, 1<<30) }, "1073741824 bytes"},
		{"named pipe", func(t *testing.T, path string) {
			t.Helper()
			if err := syscall.Mkfifo(path, 0o644); err != nil {
				t.Fatal(err)
			}
		}, "a named pipe"},
		{"device", func(t *testing.T, path string) {
			t.Helper()
			link(t, filepath.Dir(path), filepath.Base(path), "/dev/zero")
		}, "a device"},
		{"loop of links", func(t *testing.T, path string) {
			t.Helper()
			link(t, filepath.Dir(path), filepath.Base(path), filepath.Base(path))
		}, "too many links"},
		{"link to nothing", func(t *testing.T, path string) { t.Helper(); link(t, filepath.Dir(path), filepath.Base(path), "gone") }, "no such file"},
		{"link to a pipe", func(t *testing.T, path string) {
			t.Helper()
			pipe := filepath.Join(t.TempDir(), "pipe")
			if err := syscall.Mkfifo(pipe, 0o644); err != nil {
				t.Fatal(err)
			}
			link(t, filepath.Dir(path), filepath.Base(path), pipe)
		}, "a named pipe"},
		{"link to what is read as it comes", func(t *testing.T, path string) {
			t.Helper()
			link(t, filepath.Dir(path), filepath.Base(path), "/proc/kmsg") // a regular file, according to the kernel
		}, endless(t)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, "good.yaml", "domain: x")
			tt.make(t, filepath.Join(dir, "bad.yaml"))
			begin := time.Now()
			sources, problems := file.Read(file.Layout{Root: dir})
			if took := time.Since(begin); took > 30*time.Second { // waiting for a writer of the pipe would never end
				t.Errorf("it took %v", took)
			}
			if len(sources) != 1 || len(problems) != 1 || problems[0].Warning ||
				problems[0].File != filepath.Join(dir, "bad.yaml") || !strings.Contains(problems[0].Text, tt.want) {
				t.Errorf("%d sources, problems %q; want the good one, and %q", len(sources), problems, tt.want)
			}
		})
	}
}

func TestY19UnreadableFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.yaml", "domain: x")
	write(t, dir, "closed/b.yaml", "domain: x")
	for _, path := range []string{"a.yaml", "closed"} {
		if err := os.Chmod(filepath.Join(dir, path), 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "closed"), 0o755) })
	want := []string{"a.yaml: permission denied", "closed: permission denied"}
	if os.Geteuid() == 0 { // root can read all files
		want = []string{"a.yaml", "closed/b.yaml"}
	}
	if d := cmp.Diff(want, names(t, dir, file.Layout{Root: dir})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestY19TheLargestFileIsRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sparse(t, filepath.Join(dir, "a.yaml"), file.MaxFileSize)
	if sources, problems := file.Read(file.Layout{Root: dir}); len(sources) != 1 || problems != nil {
		t.Errorf("%d sources, problems %v", len(sources), problems)
	}
}

func TestTooMuchIsInvalid(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sparse(t, filepath.Join(dir, "a.yaml"), file.MaxFileSize)
	for i := range file.MaxTotalSize/file.MaxFileSize + 1 {
		if err := os.Link(filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b"+strings.Repeat("b", i))); err != nil {
			t.Fatal(err)
		}
	}
	_, problems := file.Read(file.Layout{Root: dir})
	if len(problems) != 1 || !strings.Contains(problems[0].Text, "too many rules") {
		t.Errorf("problems %v", problems)
	}
}
