package proc

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
)

// Patience is the maximum wait for a server to become ready or to end.
const Patience = 20 * time.Second

// Server is a program that may be restarted. Its processes end with their parent, even if that is killed.
type Server struct {
	*Process // the last process

	// Program is the path of the executable, or its name, and Args are its arguments.
	Program string
	Args    []string
	// Env is the environment; nil means that of this process.
	Env []string
	// Processors lists the allowed processors in the format of taskset, such as "0"; empty means all.
	Processors string
	// Stdout and Stderr receive the output; nil discards it.
	Stdout, Stderr io.Writer
	// Ready returns an error until the server is usable. See [Listens] and [Answers].
	Ready func(context.Context) error

	ordered atomic.Bool // the process was ended by this package
}

// Start starts the server and waits until it is ready. After an error, the server is not running.
func (s *Server) Start(ctx context.Context) error {
	if err := s.Launch(); err != nil {
		return err
	}
	return s.await(ctx)
}

// Launch starts the server without waiting.
func (s *Server) Launch() error {
	program, args := pinned(s.Processors, s.Program, s.Args)
	cmd := exec.Command(program, args...) //nolint:noctx // the owner ends it, not a context
	cmd.Env, cmd.Stdout, cmd.Stderr = s.Env, s.Stdout, s.Stderr
	cmd.SysProcAttr = EndWithParent()
	p, err := Start(cmd)
	if err != nil {
		return err
	}
	s.ordered.Store(false)
	s.Process = p
	return nil
}

// await waits until the server is ready.
func (s *Server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for {
		err := s.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			s.Kill()
			return fmt.Errorf("waiting for %s: %w", s.Program, err)
		case <-s.ended:
			return fmt.Errorf("%s has ended; it was not ready: %w", s.Program, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Kill ends the server immediately, like a crash, if it is running.
func (s *Server) Kill() {
	s.ordered.Store(true)
	s.Process.Kill()
}

// Stop terminates the server as an orchestrator does, and returns the time that it took.
func (s *Server) Stop() (time.Duration, error) { return s.End(syscall.SIGTERM) }

// End terminates the server with a signal, and returns the time that it took. It kills a server that does not end, and does nothing if
// the server was never started.
func (s *Server) End(by os.Signal) (time.Duration, error) {
	if s.Process == nil {
		return 0, nil
	}
	begin := time.Now()
	s.ordered.Store(true)
	if err := s.Signal(by); err != nil {
		return 0, err
	}
	select {
	case <-s.ended:
		return time.Since(begin), nil
	case <-time.After(Patience):
		s.Kill()
		return time.Since(begin), fmt.Errorf("%s does not end", s.Program)
	}
}

// Died reports whether the server has ended without Kill, Stop or End.
func (s *Server) Died() bool { return s.Over() && !s.ordered.Load() }

// Listens returns a function that checks whether a server listens on addr.
func Listens(addr string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// Answers returns a function that checks whether a GET of url returns 200.
func Answers(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := Get(ctx, url)
		return err
	}
}
