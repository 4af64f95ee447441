package imagetest_test

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

const testRules = `domain: image
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1}
`

// TestImage builds the image's root file system and runs the server in it. If the test runs as root, the server runs as
// the image's user and sees no other files.
func TestImage(t *testing.T) {
	t.Parallel()
	root := build(t)
	checkStatic(t, filepath.Join(root, "bin", "ratelimitd"))
	for _, name := range []string{"ratelimit", "ratelimit_client", "ratelimit_config_check"} {
		if target, err := os.Readlink(filepath.Join(root, "bin", name)); err != nil || target != "ratelimitd" {
			t.Errorf("/bin/%s leads to %q, %v; want ratelimitd", name, target, err)
		}
	}
	if pem, err := os.ReadFile(filepath.Join(root, "etc", "ssl", "certs", "ca-certificates.crt")); err != nil || !bytes.Contains(pem, []byte("BEGIN CERTIFICATE")) {
		t.Errorf("the image has no certificates of authorities: %v", err)
	}
	out, err := inImage(root, "/bin/ratelimitd", "version").Output()
	if err != nil || !bytes.HasPrefix(out, []byte("ratelimitd ")) {
		t.Errorf("ratelimitd version prints %q, %v", out, err)
	}
	for _, command := range [][]string{
		{"/bin/ratelimitd"},
		{"/bin/ratelimit"},
		{"/bin/ratelimit", "--whatever", "version"}, // under this name, arguments are ignored
	} {
		t.Run(strings.Join(command, " "), func(t *testing.T) { serve(t, root, command) })
	}
}

// inImage returns a command that runs as the image's user with root as its root directory, as far as this process has the permissions.
func inImage(root string, command ...string) *exec.Cmd {
	path := filepath.Join(root, command[0])
	cmd := &exec.Cmd{Path: path, Args: command, Dir: root}
	if os.Geteuid() == 0 {
		cmd.Path, cmd.Dir = command[0], "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	}
	return cmd
}

// serve starts the command with rules mounted in /rules, waits until it is ready, and ends it.
func serve(t *testing.T, root string, command []string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(root, "rules", "config"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "rules", "config", "image.yaml"), []byte(testRules), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := inImage(root, command...)
	rules := "/rules"
	if cmd.SysProcAttr == nil {
		rules = filepath.Join(root, rules)
	}
	cmd.Env = []string{
		"BACKEND_TYPE=memory", "USE_STATSD=false", "DRAIN_DELAY=0s", "RUNTIME_WATCH_ROOT=false", "RUNTIME_ROOT=" + rules,
		"HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
	}
	d, err := testkit.StartDaemon(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Kill)
	testkit.Eventually(t, "the server is ready", func() bool {
		status, _, err := testkit.Fetch(t.Context(), http.MethodGet, "http://"+d.At["HTTP"]+"/readyz", "")
		return err == nil && status == http.StatusOK
	}, d.Log.String)
	if err := d.Terminate(); err != nil {
		t.Errorf("%v\n%s", err, d.Log.String())
	}
}
