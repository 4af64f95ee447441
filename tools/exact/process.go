package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"syscall"
	"time"
)

// process is a running server.
type process struct {
	program string
	args    []string
	env     []string
	log     io.Writer
	ready   func(context.Context) error

	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
}

// patience is how long to wait for a server to be ready, or to end.
const patience = 20 * time.Second

// start starts the process and waits until it is ready.
func (p *process) start(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, p.program, p.args...)
	cmd.Env, cmd.Stderr = p.env, p.log
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() {
		defer close(done)
		_ = cmd.Wait() // how it ends does not matter
	}()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := p.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			p.kill()
			return fmt.Errorf("waiting for %s: %w", p.program, err)
		case <-done:
			return fmt.Errorf("%s has ended; it was not ready: %w", p.program, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// kill ends the process at once, as a crash would.
func (p *process) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill() // fails only if it has ended
	<-p.done
}

// stop has the process end by itself.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(patience):
		p.kill()
		return fmt.Errorf("%s does not end", p.program)
	}
}

// pause suspends the process, and resume lets it go on.
func (p *process) pause() error  { return p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *process) resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// listens returns a function that checks whether something listens on addr.
func listens(addr string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// freePort returns a port of this machine that was free a moment ago.
func freePort(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}
