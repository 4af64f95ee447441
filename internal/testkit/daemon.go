package testkit

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Build builds packages once for all tests that use it, without the race detector, as shipped. `make test` builds the programs once for
// all packages, and passes their directory in the environment variable TEST_BIN.
type Build struct {
	Root     string   // directory of the module, if not that of the test
	Packages []string // arguments of go build

	once  sync.Once
	dir   string
	given bool // dir is from TEST_BIN
	err   error
}

// Dir returns the directory of the programs. The first call builds them. See [NotShort].
func (b *Build) Dir(tb testing.TB) string {
	tb.Helper()
	NotShort(tb)
	dir, err := b.Make()
	if err != nil {
		tb.Fatal(err)
	}
	return dir
}

// Make is Dir for a TestMain, which must check [testing.Short] itself.
func (b *Build) Make() (dir string, err error) {
	b.once.Do(func() {
		if b.dir, b.given = os.LookupEnv("TEST_BIN"); b.given { //nolint:forbidigo // only tests use it
			return
		}
		if b.dir, b.err = os.MkdirTemp("", "ratelimitd"); b.err != nil {
			return
		}
		args := append([]string{"build", "-C", cmp.Or(b.Root, "."), "-ldflags=-w", "-o", b.dir}, b.Packages...)
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil { //nolint:noctx // it ends
			b.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	return b.dir, b.err
}

// Path returns the path of a program.
func (b *Build) Path(tb testing.TB, name string) string {
	tb.Helper()
	return filepath.Join(b.Dir(tb), name)
}

// Remove removes the programs after all tests.
func (b *Build) Remove() error {
	if b.given {
		return nil
	}
	return os.RemoveAll(b.dir)
}

// Env returns the environment of a ratelimitd on free ports of 127.0.0.1, with counters in memory and the rule files in the directory
// rules. It sends no statistics, does not watch files, and ends without draining.
func Env(rules string) []string {
	return []string{
		"BACKEND_TYPE=memory", "HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1", "PORT=0", "GRPC_PORT=0", "DEBUG_PORT=0",
		"RUNTIME_ROOT=" + rules, "RUNTIME_APPDIRECTORY=.", "RUNTIME_WATCH_ROOT=false", "DRAIN_DELAY=0s", "USE_STATSD=false",
	}
}

// Daemon is a running ratelimitd.
type Daemon struct {
	*Process

	Stdout, Log Buffer            // output
	At          map[string]string // addresses by name: GRPC, HTTP, DEBUG, METRICS, and SOCKET, the operators' socket
}

// StartDaemon starts the command and waits until it serves. The caller must end it, unless there is an error.
func StartDaemon(cmd *exec.Cmd) (*Daemon, error) {
	d := new(Daemon)
	cmd.Stdout, cmd.Stderr = &d.Stdout, &d.Log
	var err error
	if d.Process, err = start(cmd); err != nil {
		return nil, err
	}
	if !Poll(Patience, func() bool { return d.Over() || d.serves() }) || d.Over() {
		d.Kill()
		return nil, fmt.Errorf("the server does not serve: %w\n%s%s", d.Wait(), d.Stdout.String(), d.Log.String())
	}
	d.At = Addresses(d.Stdout.String() + d.Log.String())
	return d, nil
}

// serves reports whether the output of d says that it serves, in its banner or a log in JSON.
func (d *Daemon) serves() bool {
	return strings.Contains(d.Stdout.String(), "\ndebug ") || strings.Contains(d.Log.String(), `"@message":"serving"`)
}

// Addresses parses the addresses in the output of a ratelimitd at the start.
func Addresses(printed string) map[string]string {
	found := make(map[string]string)
	for name, pattern := range map[string]string{
		"GRPC":    `\ngRPC +(\S+)|"grpc":"([^"]*)"`,
		"HTTP":    `\nHTTP +(\S+)|"http":"([^"]*)"`,
		"DEBUG":   `\ndebug +(\S+)|"debug":"([^"]*)"`,
		"SOCKET":  `\nadmin +(\S+)|"admin":"([^"]*)"`,
		"METRICS": `\nmetrics +(\S+)`,
	} {
		if m := regexp.MustCompile(pattern).FindStringSubmatch(printed); m != nil {
			found[name] = strings.Join(m[1:], "")
		}
	}
	return found
}

// Terminate ends the process with SIGTERM, as an orchestrator does, and waits until it has ended.
func (d *Daemon) Terminate() error { return errors.Join(d.Signal(syscall.SIGTERM), d.Wait()) }
