// Package redistest runs real redis-server processes for tests, on free ports of 127.0.0.1 and each in its own
// directory. They end with the test that started them.
package redistest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

const patience = testkit.Patience

// Server is a redis-server process.
type Server struct {
	*testkit.Server

	t   testing.TB
	dir string
}

// Start starts a server without persistence, and waits until it accepts connections. Each element of config is a line of its
// configuration file, such as "maxmemory 1mb"; a later line overrides an earlier one and those of Start. {port} and {dir} are replaced by
// the server's port and directory.
func Start(tb testing.TB, config ...string) *Server {
	tb.Helper()
	base := []string{`save ""`, "appendonly no", "enable-debug-command yes", "repl-diskless-sync-delay 0"}
	return start(tb, "Ready to accept connections", append(base, config...))
}

// start starts the program with args after the name of its configuration file, and waits until it prints ready.
func start(tb testing.TB, ready string, config []string, args ...string) *Server {
	tb.Helper()
	s := &Server{t: tb, dir: tb.TempDir()}
	s.Server = testkit.Start(tb, &testkit.Program{
		Name: "redis-server", Package: "redis-server", Free: hasBus,
		Args: func(port int) []string {
			s.write(port, config)
			return append([]string{s.file("redis.conf")}, args...)
		},
		Ready: func(_ *testkit.Server, said string) bool { return strings.Contains(said, ready) },
	})
	return s
}

// Dir returns the server's directory.
func (s *Server) Dir() string { return s.dir }

// Client returns a go-redis client with long timeouts and without retries. It closes when the test ends.
func (s *Server) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{
		Addr: s.Addr(), MaxRetries: -1, DisableIdentity: true,
		DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience, PoolTimeout: patience,
	})
	s.t.Cleanup(func() { _ = c.Close() }) // the test may have closed it
	return c
}

// CLI runs redis-cli against the server and returns its output.
func (s *Server) CLI(args ...string) string {
	s.t.Helper()
	out, err := s.Try(args...)
	if err != nil {
		s.t.Fatalf("redistest: %v", err)
	}
	return out
}

// Try is [Server.CLI] for a server that may be down, or that closes connections because its role changes.
func (s *Server) Try(args ...string) (string, error) {
	args = append([]string{"-h", "127.0.0.1", "-p", fmt.Sprint(s.Port())}, args...)
	out, err := exec.CommandContext(s.t.Context(), "redis-cli", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("redis-cli %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// IsMaster reports whether the server accepts writes. It returns false if the server does not answer.
func (s *Server) IsMaster() bool {
	role, err := s.Try("ROLE")
	return err == nil && strings.HasPrefix(role, "master")
}

// InStep reports whether the server is a replica in sync with its master.
func (s *Server) InStep() bool {
	info, err := s.Try("INFO", "replication")
	return err == nil && strings.Contains(info, "master_link_status:up")
}

// CPU returns the processor time used by all threads of the process. It works only on Linux.
func (s *Server) CPU() time.Duration {
	s.t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", s.PID()))
	if err != nil || len(threads) == 0 {
		s.t.Fatalf("redistest: process %d has no schedstat", s.PID())
	}
	var sum, ns time.Duration
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		if err == nil {
			_, err = fmt.Sscan(string(stat), &ns)
		}
		if err != nil {
			s.t.Fatalf("redistest: reading the processor time: %v", err)
		}
		sum += ns
	}
	return sum
}

func (s *Server) file(name string) string { return filepath.Join(s.dir, name) }

// write writes the configuration file.
func (s *Server) write(port int, config []string) {
	s.t.Helper()
	lines := append([]string{"bind 127.0.0.1", "port {port}", `dir "{dir}"`}, config...)
	text := strings.NewReplacer("{port}", fmt.Sprint(port), "{dir}", s.dir).Replace(strings.Join(lines, "\n") + "\n")
	if err := os.WriteFile(s.file("redis.conf"), []byte(text), 0o600); err != nil {
		s.t.Fatalf("redistest: %v", err)
	}
}

// hasBus reports whether the port 10,000 higher, which cluster nodes use to communicate, is also free.
func hasBus(port int) bool {
	bus, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+10_000)) //nolint:noctx // does not wait
	return err == nil && bus.Close() == nil
}
