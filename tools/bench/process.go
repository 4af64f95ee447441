package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// process is a running server.
type process struct {
	cmd   *exec.Cmd
	addr  string // address on which it serves
	debug string // address of its debug listener, if it has one
}

// startIdle starts the idle server, which decides nothing.
func startIdle(ctx context.Context, program string, stderr io.Writer) (*process, error) {
	addr, err := freeAddr(ctx)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, program, addr), addr: addr}
	return p, p.start(ctx, stderr, listens(addr))
}

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

// pinned returns a command that runs on one processor; on any, if that is negative.
func pinned(ctx context.Context, cpu int, program string, args ...string) *exec.Cmd {
	if cpu < 0 {
		return exec.CommandContext(ctx, program, args...)
	}
	return exec.CommandContext(ctx, "taskset", append([]string{"-c", strconv.Itoa(cpu), program}, args...)...) // which becomes the program
}

// startRedis starts a redis-server that writes nothing to disk.
func startRedis(ctx context.Context, cpu int, program, dir string, stderr io.Writer) (*process, error) {
	addr, err := freeAddr(ctx)
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: pinned(ctx, cpu, program, "--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", dir), addr: addr}
	return p, p.start(ctx, stderr, listens(addr))
}

// program is a server to start: ratelimitd, or one that takes the same variables.
type program struct {
	path string
	dir  string   // of its rules
	cpu  int      // on which it runs, if not negative
	env  []string // additional variables
}

// startServer starts a server with the rules of the benchmark.
func startServer(ctx context.Context, from program, stderr io.Writer) (*process, error) {
	env := append([]string{
		"USE_STATSD=false", "DRAIN_DELAY=0s",
		"RUNTIME_ROOT=" + from.dir, "RUNTIME_SUBDIRECTORY=", "RUNTIME_WATCH_ROOT=false",
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
	}, from.env...)
	addrs := map[string]string{}
	for _, name := range []string{"PORT", "GRPC_PORT", "DEBUG_PORT"} {
		addr, err := freeAddr(ctx)
		if err != nil {
			return nil, err
		}
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		addrs[name] = addr
		env = append(env, name+"="+port)
	}
	p := &process{cmd: pinned(ctx, from.cpu, from.path), addr: addrs["GRPC_PORT"], debug: addrs["DEBUG_PORT"]}
	p.cmd.Env = append(os.Environ(), env...)
	return p, p.start(ctx, stderr, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addrs["PORT"]+"/healthcheck", http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("/healthcheck says %s", resp.Status)
		}
		return nil
	})
}

// start starts the process and waits until ready returns nil, for at most ten seconds.
func (p *process) start(ctx context.Context, stderr io.Writer, ready func(context.Context) error) error {
	p.cmd.Stderr = stderr
	if err := p.cmd.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			p.stop()
			return fmt.Errorf("waiting for %s: %w", p.cmd.Path, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stop ends the process. It gives it three seconds to end by itself.
func (p *process) stop() {
	if p.cmd.Process == nil {
		return // it could not be started
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	kill := time.AfterFunc(3*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	_ = p.cmd.Wait() // its exit status does not matter any more
}

// freeAddr returns an address of this machine that was free a moment ago.
func freeAddr(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
