package adminsocket

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const nobody = 65534

// dialAs is set to a socket in a process of another user, which dials it.
const dialAs = "ADMINSOCKET_TEST_DIAL"

// findAs is set to a port in a process that searches for the socket of a server.
const findAs = "ADMINSOCKET_TEST_FIND"

func TestMain(m *testing.M) {
	if port := os.Getenv(findAs); port != "" {
		_, ok := Server{Port: port}.Find()
		_, _ = fmt.Print(ok)
		return
	}
	path := os.Getenv(dialAs)
	if path == "" {
		os.Exit(m.Run())
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		_, _ = os.Stdout.WriteString("cannot connect")
		return
	}
	if n, err := c.Read(make([]byte, 1)); n == 0 && errors.Is(err, io.EOF) {
		_, _ = os.Stdout.WriteString("closed")
	}
}

// echo accepts connections and writes a byte to each.
func echo(t *testing.T, l net.Listener) {
	t.Helper()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte{1})
			_ = c.Close()
		}
	}()
}

func TestOnlyItsUser(t *testing.T) {
	if os.Getuid() != 0 {
		return // only root can act as another user
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "adminsocket") //nolint:usetesting // another user cannot reach a directory of the test
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	program, path := filepath.Join(dir, "test"), filepath.Join(dir, "s")
	if err := os.WriteFile(program, self, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	server := Server{Configured: path}
	l, err := server.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	echo(t, l)
	if _, ok := server.Find(); !ok {
		t.Error("its user cannot use the socket")
	}
	stranger := func() string {
		cmd := exec.CommandContext(t.Context(), program)
		cmd.Dir, cmd.Env = "/", []string{dialAs + "=" + path}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if got := stranger(); got != "cannot connect" {
		t.Errorf("another user: %q, want that the mode keeps it out", got)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if got := stranger(); got != "closed" {
		t.Errorf("another user, with a mode that lets it in: %q, want that its connection is closed", got)
	}
}

// TestOtherNetwork: a command in another network namespace does not find a server at the same port, although they share the
// directory.
func TestOtherNetwork(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	l, err := Server{Port: "8081"}.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	echo(t, l)
	find := func(attr *syscall.SysProcAttr) string {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env, cmd.SysProcAttr = append(os.Environ(), findAs+"=8081"), attr
		out, err := cmd.Output()
		if errors.Is(err, syscall.EPERM) {
			return "false" // namespaces are not permitted
		}
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if got := find(nil); got != "true" {
		t.Errorf("in the same network: %s, want that the server is found", got)
	}
	if got := find(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}); got != "false" {
		t.Errorf("in another network: %s, want that no server is found", got)
	}
}

func TestDirectoryOfAnother(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	server := Server{Port: "8081"}
	l, err := server.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	echo(t, l)
	path, ok := server.Find()
	if !ok {
		t.Error("the socket cannot be used")
	}
	if _, err := server.Listen(t.Context()); err == nil || !strings.Contains(err.Error(), "another server is listening on it") {
		t.Errorf("a second server: %v", err)
	}
	if other, ok := (Server{UDS: "s", Port: "8081"}).Find(); ok || other == path {
		t.Errorf("a server on a unix socket that is not there has the socket %s", other)
	}
	if err := os.Chmod(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, ok := server.Find(); ok {
		t.Error("a socket in a directory that others can read is found")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := server.Listen(t.Context()); err == nil || !strings.Contains(err.Error(), "set ADMIN_SOCKET to a path in a directory of this user") {
		t.Errorf("a directory that others can read: %v", err)
	}
	if err := os.Chmod(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, ok := server.Find(); ok {
		t.Error("a socket that is gone is found")
	}
}
