// Package redistest runs real redis-server processes for tests, on free ports of 127.0.0.1 and each in its own
// directory. They end with the test that started them.
package redistest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	program  = "redis-server"
	ready    = "Ready to accept connections"
	patience = time.Minute // how long to wait for a process to be ready, or to answer
	attempts = 5           // to find a port that is still free when the process binds it
)

// Server is a redis-server process.
type Server struct {
	t     testing.TB
	dir   string
	port  int
	args  []string // of the program, after the configuration file
	ready string   // what the process says when it is ready
	cmd   *exec.Cmd
	done  chan struct{} // closed when cmd has ended
}

// Start starts a server that keeps nothing on disk, and waits until it accepts connections. Each of config is a line of
// its configuration file, such as "maxmemory 1mb"; a later line overrides an earlier one and what Start itself writes.
// In them {port} and {dir} stand for the server's port and directory.
func Start(tb testing.TB, config ...string) *Server {
	tb.Helper()
	return start(&Server{t: tb, dir: tb.TempDir(), ready: ready}, config)
}

// start starts s on a free port.
func start(s *Server, config []string) *Server {
	t := s.t
	t.Helper()
	t.Cleanup(s.Kill)
	for range attempts {
		s.port = freePort(t)
		s.write(config)
		err := s.run()
		if err == nil {
			return s
		}
		if !taken(err) {
			t.Fatalf("redistest: %v", err)
		}
	}
	t.Fatalf("redistest: found no free port in %d attempts", attempts)
	return nil
}

// taken reports whether somebody else has the port.
func taken(err error) bool { return strings.Contains(err.Error(), "Address already in use") }

// Addr returns the host:port on which the server listens.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// Port returns the port on which the server listens.
func (s *Server) Port() int { return s.port }

// Dir returns the server's directory.
func (s *Server) Dir() string { return s.dir }

// PID returns the id of the server's process.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Kill ends the process at once, as a crash would, and waits until it has ended. It does nothing if the process has
// already ended.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // fails only if it has ended
	<-s.done
}

// Stop suspends the process: connections stay up, but get no answers.
func (s *Server) Stop() { s.signal(syscall.SIGSTOP) }

// Cont resumes a process that was stopped.
func (s *Server) Cont() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatalf("redistest: signal %v: %v", sig, err)
	}
}

// Restart ends the process if it runs, and starts it again at the same address. Its contents in memory are lost.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	err := s.run()
	for deadline := time.Now().Add(patience); err != nil && taken(err) && time.Now().Before(deadline); err = s.run() {
		time.Sleep(10 * time.Millisecond) // somebody's connection may hold the port for a moment
	}
	if err != nil {
		s.t.Fatalf("redistest: restarting: %v", err)
	}
}

// Client returns a patient client of go-redis, which retries nothing, and closes it when the test ends.
func (s *Server) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{
		Addr: s.Addr(), MaxRetries: -1, DisableIdentity: true,
		DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience, PoolTimeout: patience,
	})
	s.t.Cleanup(func() { _ = c.Close() }) // the test may have done so
	return c
}

// CLI runs redis-cli against the server and returns what it prints.
func (s *Server) CLI(args ...string) string {
	s.t.Helper()
	out, err := s.Try(args...)
	if err != nil {
		s.t.Fatalf("redistest: %v", err)
	}
	return out
}

// Try is [Server.CLI] for a server that may be down, or that breaks connections because its role changes.
func (s *Server) Try(args ...string) (string, error) {
	args = append([]string{"-h", "127.0.0.1", "-p", fmt.Sprint(s.port)}, args...)
	out, err := exec.CommandContext(s.t.Context(), "redis-cli", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("redis-cli %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// IsMaster reports whether the server accepts writes; one that does not answer does not.
func (s *Server) IsMaster() bool {
	role, err := s.Try("ROLE")
	return err == nil && strings.HasPrefix(role, "master")
}

// InStep reports whether the server is a replica that is in sync with its master.
func (s *Server) InStep() bool {
	info, err := s.Try("INFO", "replication")
	return err == nil && strings.Contains(info, "master_link_status:up")
}

// CPU returns the processor time that the process has used, over all of its threads. It works only on Linux.
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
func (s *Server) write(config []string) {
	s.t.Helper()
	lines := []string{"bind 127.0.0.1", "port {port}", `dir "{dir}"`}
	if len(s.args) == 0 {
		lines = append(lines, `save ""`, "appendonly no", "enable-debug-command yes", "repl-diskless-sync-delay 0")
	}
	lines = append(lines, config...)
	text := strings.NewReplacer("{port}", fmt.Sprint(s.port), "{dir}", s.dir).Replace(strings.Join(lines, "\n") + "\n")
	if err := os.WriteFile(s.file("redis.conf"), []byte(text), 0o600); err != nil {
		s.t.Fatalf("redistest: %v", err)
	}
}

// run starts the process and waits until it is ready.
func (s *Server) run() error {
	log, err := os.Create(s.file("redis.log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()                                                 // the process has its own descriptor
	cmd := exec.Command(program, append([]string{s.file("redis.conf")}, s.args...)...) //nolint:noctx // it ends by Kill
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attributes()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s, which is in the package redis-server of Debian: %w", program, err)
	}
	done := make(chan struct{})
	s.cmd, s.done = cmd, done
	go func() {
		defer close(done)
		_ = cmd.Wait() // it is killed, so there is always an error
	}()
	return s.await()
}

// await waits until the process reports that it is ready.
func (s *Server) await() error {
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		said, err := os.ReadFile(s.file("redis.log"))
		if err != nil {
			return err
		}
		select {
		case <-s.done:
			return fmt.Errorf("%s ended at once:\n%s", program, said)
		default:
		}
		if bytes.Contains(said, []byte(s.ready)) {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("%s was not ready after %v", program, patience), errors.New(string(said)))
		}
	}
}

// freePort returns a port that was free a moment ago, as was the port 10,000 above it, on which the nodes of a cluster
// communicate.
func freePort(tb testing.TB) int {
	tb.Helper()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // does not wait
		if err != nil {
			tb.Fatalf("redistest: %v", err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		bus, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+10_000)) //nolint:noctx // does not wait
		if err == nil {
			err = bus.Close()
		}
		if e := l.Close(); e == nil && err == nil {
			return port
		}
	}
	tb.Fatal("redistest: found no two free ports by 10,000 apart")
	return 0
}
