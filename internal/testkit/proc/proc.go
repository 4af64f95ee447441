// Package proc runs programs as processes: it starts, suspends and ends them, looks at what they use, and finds ports for
// them. Tests, by way of testkit, and what attacks and measures servers run them by it.
package proc

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Process is a running program, or one that has ended.
type Process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended, with err
	err   error
}

// Start starts a command, as the first of a group of processes unless it has a session of its own.
func Start(cmd *exec.Cmd) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Setpgid = !cmd.SysProcAttr.Setsid
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, ended: make(chan struct{})}
	go func() { p.err = cmd.Wait(); close(p.ended) }()
	return p, nil
}

// PID returns the id of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal to the process.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Pause suspends the process: connections stay up, but soon get no answers.
func (p *Process) Pause() error { return p.Signal(syscall.SIGSTOP) }

// Resume lets a process go on that was suspended.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// Over reports whether the process has ended. One that there never was has not.
func (p *Process) Over() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Wait waits until the process has ended, and returns an error unless it has ended well.
func (p *Process) Wait() error {
	<-p.ended
	return p.err
}

// Kill ends the process and its children at once, as a crash would, and waits until they have ended. It does nothing if there is no
// process, or if it has ended already.
func (p *Process) Kill() {
	if p == nil || p.Over() {
		return
	}
	_ = p.cmd.Process.Kill() // fails only if it has ended
	KillGroup(p.PID())
	<-p.ended
}

// KillGroup kills what is left of a group of processes, and waits until they no longer write files: those whose end no one has asked for
// may stay longer.
func KillGroup(first int) {
	for begin := time.Now(); syscall.Kill(-first, syscall.SIGKILL) == nil && time.Since(begin) < groupEnds; {
		time.Sleep(time.Millisecond)
	}
}

// groupEnds is how long to wait for the end of processes that are killed.
const groupEnds = 5 * time.Second

// Command returns a command that runs on some processors, as taskset has them, such as "0"; on any if they are empty. The
// end of ctx kills it.
func Command(ctx context.Context, processors, program string, args ...string) *exec.Cmd {
	program, args = pinned(processors, program, args)
	return exec.CommandContext(ctx, program, args...)
}

// pinned returns what runs a program on some processors, and its arguments.
func pinned(processors, program string, args []string) (string, []string) {
	if processors == "" {
		return program, args
	}
	return "taskset", append([]string{"-c", processors, program}, args...) // which becomes the program
}

// proc returns the path of what Linux has about a process.
func proc(pid int, file string) string { return fmt.Sprintf("/proc/%d/%s", pid, file) }
