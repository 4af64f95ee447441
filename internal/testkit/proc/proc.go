// Package proc runs programs as processes: it starts, suspends and ends them, measures their resources, and finds ports for them. testkit
// and the tools that test and measure servers use it.
package proc

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Process is a program that is running or has ended.
type Process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended and err is set
	err   error
}

// Start starts a command as the leader of a process group, unless it has its own session.
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

// PID returns the ID of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal to the process.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Pause suspends the process. Connections stay open, but get no answers.
func (p *Process) Pause() error { return p.Signal(syscall.SIGSTOP) }

// Resume resumes a suspended process.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// Over reports whether the process has ended. A process that was never started has not.
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

// Wait waits until the process has ended, and returns an error unless it succeeded.
func (p *Process) Wait() error {
	<-p.ended
	return p.err
}

// Kill ends the process and its children immediately, like a crash, and waits until they have ended. It does nothing if the process has
// already ended or was never started.
func (p *Process) Kill() {
	if p == nil || p.Over() {
		return
	}
	_ = p.cmd.Process.Kill() // fails only if the process has ended
	KillGroup(p.PID())
	<-p.ended
}

// KillGroup kills the remaining processes of a group, and waits until they no longer write files. Zombies may remain.
func KillGroup(first int) {
	for begin := time.Now(); syscall.Kill(-first, syscall.SIGKILL) == nil && time.Since(begin) < groupEnds; {
		time.Sleep(time.Millisecond)
	}
}

// groupEnds is the maximum wait for the end of killed processes.
const groupEnds = 5 * time.Second

// Command returns a command that runs on the given processors, in the format of taskset, such as "0"; empty means all. The end of ctx
// kills it.
func Command(ctx context.Context, processors, program string, args ...string) *exec.Cmd {
	program, args = pinned(processors, program, args)
	return exec.CommandContext(ctx, program, args...)
}

// pinned returns a program and arguments that run a program on the given processors.
func pinned(processors, program string, args []string) (string, []string) {
	if processors == "" {
		return program, args
	}
	return "taskset", append([]string{"-c", processors, program}, args...) // taskset execs the program
}

// proc returns the path of a file in Linux's directory of a process.
func proc(pid int, file string) string { return fmt.Sprintf("/proc/%d/%s", pid, file) }
