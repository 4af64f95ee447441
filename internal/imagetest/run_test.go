package imagetest_test

import (
	"bytes"
	"context"
	"errors"
	"net"
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

// TestImage builds the image's root file system and runs the server in it: as the image's user and with nothing else in
// sight where the test may do that, which takes root.
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

// inImage is a command that sees root as its root and runs as the image's user, as far as this process may arrange it.
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
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(addr, ":")
	cmd := inImage(root, command...)
	rules := "/rules"
	if cmd.SysProcAttr == nil {
		rules = filepath.Join(root, rules)
	}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.Env = []string{
		"BACKEND_TYPE=memory", "USE_STATSD=false", "DRAIN_DELAY=0s", "RUNTIME_WATCH_ROOT=false", "RUNTIME_ROOT=" + rules,
		"HOST=127.0.0.1", "PORT=" + port, "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	err = ready(t.Context(), "http://"+addr+"/readyz")
	if err := errors.Join(err, cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil {
		t.Errorf("%v\n%s", err, output.String())
	}
}

// ready asks url until it answers 200, for 20 seconds at most.
func ready(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
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
