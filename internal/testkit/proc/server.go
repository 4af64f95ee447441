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

// Patience is how long to wait for a server to be ready, or to end.
const Patience = 20 * time.Second

// Server is a program that may be started again when it has ended. Its processes end with the one that started them, even
// if that is killed.
type Server struct {
	*Process // that was started last

	// Program is the path of the executable, or its name, and Args are its arguments.
	Program string
	Args    []string
	// Env is its environment; if nil, that of this process.
	Env []string
	// Processors are those that it may run on, as taskset has them, such as "0"; if empty, any.
	Processors string
	// Stdout and Stderr are what it prints to; nil drops what it prints.
	Stdout, Stderr io.Writer
	// Ready returns an error for as long as the server does not do what it is there for. See [Listens] and [Answers].
	Ready func(context.Context) error

	ordered atomic.Bool // whether we ended the process
}

// Start starts the server and waits until it is ready. If there is an error, it does not run.
func (s *Server) Start(ctx context.Context) error {
	if err := s.Launch(); err != nil {
		return err
	}
	return s.await(ctx)
}

// Launch starts the server, and does not wait.
func (s *Server) Launch() error {
	program, args := pinned(s.Processors, s.Program, s.Args)
	cmd := exec.Command(program, args...) //nolint:noctx // it would be killed before its owner can end it in another way
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

// Kill ends the server at once, as a crash would, if it runs.
func (s *Server) Kill() {
	s.ordered.Store(true)
	s.Process.Kill()
}

// Stop has the server end by itself, as an orchestrator does, and returns how long that took.
func (s *Server) Stop() (time.Duration, error) { return s.End(syscall.SIGTERM) }

// End has the server end by itself on a signal, and returns how long that took. One that does not is killed; with
// one that was not started there is nothing to do.
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

// Listens returns a function that checks whether something listens on addr.
func Listens(addr string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// Answers returns a function that checks whether url is answered with 200.
func Answers(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := Get(ctx, url)
		return err
	}
}
