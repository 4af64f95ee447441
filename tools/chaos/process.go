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

// process is a program with a log.
type process struct {
	*proc.Server

	e   *env
	log string // path
}

// patience bounds the time for a program to become ready or to end.
const patience = proc.Patience

// rss returns the resident memory in bytes.
func (p *process) rss() int64 {
	n, err := p.Memory("VmRSS")
	if err != nil {
		return 0 // it has ended
	}
	return n
}

// fds returns the number of open files.
func (p *process) fds() int {
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
	if err != nil {
		return 0
	}
	return len(all)
}

// busy returns the CPU time used.
func (p *process) busy() time.Duration {
	d, err := proc.Busy(p.PID())
	if err != nil {
		return 0 // it has ended
	}
	return d
}

// peakRSS samples the resident memory until the returned function is called, which returns the maximum in bytes.
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

// process returns a process with a log, which ends with the check. It is not started.
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

// output runs a command and returns its output. The command and its children end with ctx.
func output(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.SysProcAttr = proc.EndWithParent()
	cmd.SysProcAttr.Setpgid = true
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = patience
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// sleep waits for d, or returns the error of ctx if that is done first.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// poll calls f every 10 ms until it returns true, for at most most. It returns the elapsed time.
func poll(ctx context.Context, most time.Duration, f func() bool) (time.Duration, bool) {
	begin := time.Now()
	for !f() {
		if time.Since(begin) > most || sleep(ctx, 10*time.Millisecond) != nil {
			return time.Since(begin), false
		}
	}
	return time.Since(begin), true
}
