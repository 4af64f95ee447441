package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// process is a running program.
type process struct {
	program string
	args    []string
	env     []string
	log     string // file
	ready   func(context.Context) error
	cpu     int // to run on alone, or -1

	cmd     *exec.Cmd
	done    chan struct{} // closed when cmd has ended
	ordered atomic.Bool   // whether we ended it
}

// patience is how long to wait for a program to be ready, or to end.
const patience = 20 * time.Second

// start starts the process and waits until it is ready.
func (p *process) start(ctx context.Context) error {
	if err := p.launch(); err != nil {
		return err
	}
	return p.await(ctx)
}

// launch starts the process, and does not wait.
func (p *process) launch() error {
	program, args := p.program, p.args
	if p.cpu >= 0 {
		program, args = "taskset", append([]string{"-c", strconv.Itoa(p.cpu), p.program}, args...)
	}
	// A context would end the process before its check has ended the way it wants.
	cmd := exec.Command(program, args...) //nolint:noctx // see above
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd.Env, cmd.Stderr, cmd.Stdout = p.env, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	p.ordered.Store(false)
	go func() {
		defer close(done)
		_ = cmd.Wait() // how it ends is up to the check
	}()
	return nil
}

// await waits until the process is ready.
func (p *process) await(ctx context.Context) error {
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
		case <-p.done:
			return fmt.Errorf("%s has ended; it was not ready: %w", p.program, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// kill ends the process at once, as a crash would.
func (p *process) kill() {
	if p.cmd == nil {
		return
	}
	p.ordered.Store(true)
	_ = p.cmd.Process.Kill() // fails only if it has ended
	<-p.done
}

// stop has the process end by itself, and returns how long that took.
func (p *process) stop() (time.Duration, error) {
	begin := time.Now()
	p.ordered.Store(true)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	select {
	case <-p.done:
		return time.Since(begin), nil
	case <-time.After(patience):
		p.kill()
		return time.Since(begin), fmt.Errorf("%s does not end", p.program)
	}
}

// died returns whether the process has ended without our doing.
func (p *process) died() bool {
	select {
	case <-p.done:
		return !p.ordered.Load()
	default:
		return false
	}
}

// pause suspends the process, and resume lets it go on.
func (p *process) pause() error  { return p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *process) resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// rss returns the resident memory of the process in bytes.
func (p *process) rss() int64 { return p.status("VmRSS:") << 10 }

// fds returns how many files the process has open.
func (p *process) fds() int {
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	return len(all)
}

func (p *process) status(field string) int64 {
	all, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(all)) {
		if rest, found := strings.CutPrefix(line, field); found {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n
		}
	}
	return 0
}

// busy returns the CPU time that the process has used.
func (p *process) busy() time.Duration {
	all, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	const user, system = 11, 12 // from the state, which follows the name in parentheses
	fields := strings.Fields(string(all[bytes.LastIndexByte(all, ')')+2:]))
	u, _ := strconv.ParseInt(fields[user], 10, 64)
	s, _ := strconv.ParseInt(fields[system], 10, 64)
	return time.Duration(u+s) * tick
}

// peakRSS follows the memory of the process until the returned function is called, which returns the most.
func (p *process) peakRSS() func() int64 {
	done, peak := make(chan struct{}), make(chan int64)
	go func() {
		most := p.rss()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				most = max(most, p.rss())
			case <-done:
				peak <- max(most, p.rss())
				return
			}
		}
	}()
	return func() int64 { close(done); return <-peak }
}

// process returns a process whose log is kept and which ends with the check. It is not started.
func (e *env) process(name, program string, args ...string) *process {
	e.mu.Lock()
	e.n++
	log := filepath.Join(e.dir, fmt.Sprintf("%s%d.log", name, e.n))
	e.logs = append(e.logs, log)
	e.mu.Unlock()
	p := &process{program: program, args: args, log: log, cpu: -1}
	e.atEnd(func() {
		if p.cmd != nil {
			_ = p.resume() // or it would not notice
			p.kill()
		}
	})
	return p
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

// freePort returns a port of this machine that nobody listens on, and that no other call of it returns. It is not one of
// those that connections are given when they are opened, of which any may be taken before it is used.
func (e *env) freePort(ctx context.Context) (string, error) {
	const first, last = 10_000, 32_000
	for range last - first {
		e.mu.Lock()
		if e.port == 0 || e.port == last {
			e.port = first + rand.IntN(last-first) // not of the seed: others do the same
		}
		e.port++
		port := strconv.Itoa(e.port)
		e.mu.Unlock()
		if l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:"+port); err == nil {
			return port, l.Close()
		}
	}
	return "", errors.New("no port is free")
}

// sleep waits for d, or until ctx is done, which is the error.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// poll calls f every 10 ms until it returns true, and returns how long that took; longest is how long it tries.
func poll(ctx context.Context, most time.Duration, f func() bool) (time.Duration, bool) {
	begin := time.Now()
	for !f() {
		if time.Since(begin) > most || sleep(ctx, 10*time.Millisecond) != nil {
			return time.Since(begin), false
		}
	}
	return time.Since(begin), true
}
