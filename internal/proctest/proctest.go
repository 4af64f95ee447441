// Package proctest runs real servers for tests: processes on free ports of 127.0.0.1, which end with the test that
// started them.
package proctest

import (
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
)

// Patience is how long to wait for a server to be ready, or to answer.
const Patience = time.Minute

// attempts bounds the search for a port that is still free when the process binds it.
const attempts = 5

// Program is a server's program.
type Program struct {
	// Name is the name of the executable, and Package that of Debian's package that has it.
	Name, Package string
	// Free reports whether the program may listen on port, which was free a moment ago. If nil, it may.
	Free func(port int) bool
	// Args returns the arguments with which the program listens on port. It is called for each port that is tried.
	Args func(port int) []string
	// Ready reports whether the server, which has printed said so far, takes connections.
	Ready func(s *Server, said string) bool
}

// Server is a process.
type Server struct {
	tb      testing.TB
	program *Program
	log     string // the file that it prints to
	port    int
	args    []string
	cmd     *exec.Cmd
	done    chan struct{} // closed when cmd has ended
}

// Start starts a server on a free port, and waits until it is ready.
func Start(tb testing.TB, p *Program) *Server {
	tb.Helper()
	s := &Server{tb: tb, program: p, log: filepath.Join(tb.TempDir(), "log")}
	tb.Cleanup(s.Kill)
	for range attempts {
		s.port = s.freePort()
		s.args = p.Args(s.port)
		err := s.run()
		if err == nil {
			return s
		}
		if !taken(err) {
			tb.Fatalf("proctest: %v", err)
		}
	}
	tb.Fatalf("proctest: found no free port for %s in %d attempts", p.Name, attempts)
	return nil
}

// taken reports whether somebody else has the port.
func taken(err error) bool { return strings.Contains(err.Error(), "Address already in use") }

// Addr returns the host:port on which the server listens.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// Port returns the port on which the server listens.
func (s *Server) Port() int { return s.port }

// PID returns the id of the process.
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

// Stop suspends the process: connections stay up, but soon get no answers.
func (s *Server) Stop() { s.signal(syscall.SIGSTOP) }

// Cont resumes a process that was stopped.
func (s *Server) Cont() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.tb.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.tb.Fatalf("proctest: sending %v to %s: %v", sig, s.program.Name, err)
	}
}

// Restart ends the process if it runs, and starts it again with the same arguments. Its contents in memory are lost.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	err := s.run()
	for deadline := time.Now().Add(Patience); err != nil && taken(err) && time.Now().Before(deadline); err = s.run() {
		time.Sleep(10 * time.Millisecond) // somebody's connection may hold the port for a moment
	}
	if err != nil {
		s.tb.Fatalf("proctest: restarting: %v", err)
	}
}

// run starts the process and waits until it is ready.
func (s *Server) run() error {
	log, err := os.Create(s.log)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()             // the process has its own descriptor
	cmd := exec.Command(s.program.Name, s.args...) //nolint:noctx // it ends by Kill
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attributes()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s, which is in Debian's package %s: %w", s.program.Name, s.program.Package, err)
	}
	done := make(chan struct{})
	s.cmd, s.done = cmd, done
	go func() {
		defer close(done)
		_ = cmd.Wait() // it is killed, so there is always an error
	}()
	return s.await()
}

// await waits until the process is ready.
func (s *Server) await() error {
	for deadline := time.Now().Add(Patience); ; time.Sleep(2 * time.Millisecond) {
		over := s.over() // before it is read what it printed last
		said, err := os.ReadFile(s.log)
		switch {
		case err != nil:
			return err
		case over:
			return fmt.Errorf("%s ended at once:\n%s", s.program.Name, said)
		case s.program.Ready(s, string(said)):
			return nil
		case time.Now().After(deadline):
			return errors.Join(fmt.Errorf("%s was not ready after %v", s.program.Name, Patience), errors.New(string(said)))
		}
	}
}

// over reports whether the process has ended.
func (s *Server) over() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// freePort returns a port that was free a moment ago, and that suits the program.
func (s *Server) freePort() int {
	s.tb.Helper()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // does not wait
		if err != nil {
			s.tb.Fatalf("proctest: %v", err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		suits := s.program.Free == nil || s.program.Free(port)
		if err := l.Close(); err == nil && suits {
			return port
		}
	}
	s.tb.Fatalf("proctest: found no port for %s", s.program.Name)
	return 0
}
