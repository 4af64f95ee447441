package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// attempts bounds the search for a port that is still free when the process binds it.
const attempts = 5

// ports never returns the port of an ended server, because that may be restarted, and its clients must not reach another server.
//
//nolint:gochecknoglobals // the tests of a process share its machine's ports
var ports proc.Ports

// Program is a server's program.
type Program struct {
	// Name is the name of the executable, and Package the Debian package that contains it.
	Name, Package string
	// Free reports whether the program can use port, which was free a moment ago. Nil means that it can.
	Free func(port int) bool
	// Args returns the arguments that make the program listen on port. It is called for each port that is tried.
	Args func(port int) []string
	// Ready reports whether the server accepts connections, given its output so far.
	Ready func(s *Server, said string) bool
}

// Server is a process with its own port.
type Server struct {
	*Process

	tb      testing.TB
	program *Program
	log     string // file with its output
	port    int
	args    []string
}

// NotShort skips a test that starts or builds processes if it runs with -short, as in `make check`. Tests are skipped for no other
// reason: `make test` runs all of them.
func NotShort(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("starts processes, which -short forbids")
	}
}

// Start starts a server on a free port, and waits until it is ready. See [NotShort].
func Start(tb testing.TB, p *Program) *Server {
	tb.Helper()
	NotShort(tb)
	s := &Server{tb: tb, program: p, log: filepath.Join(tb.TempDir(), "log")}
	tb.Cleanup(func() { s.Kill() }) // the process at that time
	for range attempts {
		s.port = s.freePort()
		s.args = p.Args(s.port)
		err := s.run()
		if err == nil {
			return s
		}
		if !taken(err) {
			tb.Fatalf("testkit: %v", err)
		}
	}
	tb.Fatalf("testkit: found no free port for %s in %d attempts", p.Name, attempts)
	return nil
}

// taken reports whether err means that another process has the port.
func taken(err error) bool {
	return strings.Contains(strings.ToLower(err.Error()), "address already in use") // the first letter differs between Go and C
}

// Addr returns the host:port on which the server listens.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// Port returns the port on which the server listens.
func (s *Server) Port() int { return s.port }

// Output returns the output of the process.
func (s *Server) Output() string {
	s.tb.Helper()
	said, err := os.ReadFile(s.log)
	if err != nil {
		s.tb.Errorf("testkit: %v", err)
	}
	return string(said)
}

// Stop suspends the process. Connections stay open, but get no answers.
func (s *Server) Stop() { s.signal(syscall.SIGSTOP) }

// Cont resumes a suspended process.
func (s *Server) Cont() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.tb.Helper()
	if err := s.Signal(sig); err != nil {
		s.tb.Fatalf("testkit: sending %v to %s: %v", sig, s.program.Name, err)
	}
}

// Restart ends the process if it is running, and starts it again with the same arguments. Data in memory are lost.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	var err error
	Poll(Patience, func() bool { // a connection may hold the port for a moment
		err = s.run()
		return err == nil || !taken(err)
	})
	if err != nil {
		s.tb.Fatalf("testkit: restarting: %v", err)
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
	cmd.SysProcAttr = proc.EndWithParent()
	if s.Process, err = start(cmd); err != nil {
		return fmt.Errorf("starting %s, which is in Debian's package %s: %w", s.program.Name, s.program.Package, err)
	}
	return s.await()
}

// await waits until the process is ready.
func (s *Server) await() error {
	var said []byte
	var err error
	over := false
	ready := Poll(Patience, func() bool {
		over = s.Over() // before reading its last output
		said, err = os.ReadFile(s.log)
		return err != nil || over || s.program.Ready(s, string(said))
	})
	switch {
	case err != nil:
		return err
	case over:
		return fmt.Errorf("%s ended at once:\n%s", s.program.Name, said)
	case !ready:
		return fmt.Errorf("%s was not ready after %v:\n%s", s.program.Name, Patience, said)
	}
	return nil
}

// freePort returns a port that was free a moment ago and that the program can use.
func (s *Server) freePort() int {
	s.tb.Helper()
	for range 100 {
		free, err := ports.Free(s.tb.Context())
		if err != nil {
			s.tb.Fatalf("testkit: %v", err)
		}
		port, err := strconv.Atoi(free)
		if err != nil {
			s.tb.Fatalf("testkit: %v", err)
		}
		if s.program.Free == nil || s.program.Free(port) {
			return port
		}
	}
	s.tb.Fatalf("testkit: found no port for %s", s.program.Name)
	return 0
}
