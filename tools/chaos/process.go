package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// process is a program whose log is kept.
type process struct {
	*proc.Server

	e   *env
	log string // file
}

// patience is how long to wait for a program to be ready, or to end.
const patience = proc.Patience

// rss returns the resident memory of the process in bytes.
func (p *process) rss() int64 {
	n, err := p.Memory("VmRSS")
	if err != nil {
		return 0 // it has ended
	}
	return n
}

// fds returns how many files the process has open.
func (p *process) fds() int {
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
	if err != nil {
		return 0
	}
	return len(all)
}

// busy returns the CPU time that the process has used.
func (p *process) busy() time.Duration {
	d, err := proc.Busy(p.PID())
	if err != nil {
		return 0 // it has ended
	}
	return d
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
	path := filepath.Join(e.dir, fmt.Sprintf("%s%d.log", name, e.n))
	e.logs = append(e.logs, path)
	e.mu.Unlock()
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	e.must(err)
	p := &process{&proc.Server{Program: program, Args: args, Processors: e.theirs, Stdout: log, Stderr: log}, e, path}
	e.atEnd(func() {
		p.Kill()
		_ = log.Close()
	})
	return p
}

// output runs a command and returns what it prints. It ends with ctx, and with it whatever it has started.
func output(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.SysProcAttr = proc.EndWithParent()
	cmd.SysProcAttr.Setpgid = true
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = patience
	out, err := cmd.CombinedOutput()
	return string(out), err
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
