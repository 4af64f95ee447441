package smallfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/smallfile"
)

func TestRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, size := range map[string]int{"full": 100, "more": 101} {
		if err := os.WriteFile(path(name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(path("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		path("full"): "", "/dev/null": "",
		path("more"): path("more") + " holds more than 100 bytes", "/dev/zero": "/dev/zero holds more than 100 bytes",
		path("none"): "no such file", dir: "is a directory", path("pipe"): path("pipe") + " is a named pipe without a writer",
	} {
		text, err := smallfile.Read(name, 100)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %d bytes, %v, want %q", name, len(text), err, want)
		}
	}
}

// TestReadAll checks that reading a pipe waits for its content, but not indefinitely.
func TestReadAll(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := smallfile.Open(pipe)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString("secret"); err != nil {
		t.Fatal(err)
	}
	if text, err := smallfile.ReadAll(f, 100, 50*time.Millisecond); err != smallfile.ErrSlow { //nolint:errorlint // as it is
		t.Errorf("%q, %v, want %v", text, err, smallfile.ErrSlow)
	}
	if _, err := w.WriteString("secret"); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if text, err := smallfile.ReadAll(f, 100, time.Minute); string(text) != "secret" || err != nil {
		t.Errorf("%q, %v, want secret", text, err)
	}
}
