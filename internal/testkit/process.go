package testkit

import (
	"os"
	"os/exec"
)

// Process is a running program.
type Process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended, with err
	err   error
}

func start(cmd *exec.Cmd) (*Process, error) {
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

// Over reports whether the process has ended.
func (p *Process) Over() bool {
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

// Kill ends the process at once, as a crash would, and waits until it has ended. It does nothing if there is no process,
// or if it has ended already.
func (p *Process) Kill() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill() // fails only if it has ended
	<-p.ended
}
