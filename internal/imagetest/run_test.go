package imagetest_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
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
		{"/bin/ratelimit", "--whatever", "version"}, // under this name arguments mean nothing
	} {
		t.Run(strings.Join(command, " "), func(t *testing.T) { serve(t, root, command) })
	}
}

// inImage returns a command that runs as the image's user with root as its root directory, as far as this process is
// allowed to arrange that.
func inImage(root string, command ...string) *exec.Cmd {
	path := filepath.Join(root, command[0])
	cmd := &exec.Cmd{Path: path, Args: command, Dir: root}
	if os.Geteuid() == 0 {
		cmd.Path, cmd.Dir = command[0], "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	}
	return cmd
}

// serve starts the command with rules mounted below /rules, waits until it is ready, and ends it.
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
	var log bytes.Buffer
	cmd.Stderr = &log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = []string{
		"BACKEND_TYPE=memory", "USE_STATSD=false", "DRAIN_DELAY=0s", "RUNTIME_WATCH_ROOT=false", "RUNTIME_ROOT=" + rules,
		"HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	addr, err := announced(stdout)
	if err == nil {
		err = ready(t.Context(), "http://"+addr+"/readyz")
	}
	err = errors.Join(err, cmd.Process.Signal(syscall.SIGTERM))
	_, _ = io.Copy(io.Discard, stdout) // to its end, as Wait asks for
	if err := errors.Join(err, cmd.Wait()); err != nil {
		t.Errorf("%v\n%s", err, log.String())
	}
}

// announced reads what the server prints at its start, and finds where it serves HTTP.
func announced(stdout io.Reader) (addr string, err error) {
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 1 && fields[0] == "HTTP" {
			return fields[1], nil
		}
	}
	return "", errors.New("the server does not say where it serves HTTP")
}

// patience is how long a server may take to start, to answer and to end.
const patience = time.Minute

// ready asks url until it answers 200.
func ready(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			err = resp.Body.Close()
		}
		if err == nil && resp.StatusCode == http.StatusOK {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}
