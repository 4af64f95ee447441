package testkit

import (
	"os/exec"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// Process is a running program under test.
type Process struct{ *proc.Process }

func start(cmd *exec.Cmd) (*Process, error) {
	p, err := proc.Start(cmd)
	if err != nil {
		return nil, err
	}
	return &Process{p}, nil
}

// Kill ends the process immediately, like a crash, and waits until it has ended. It does nothing if the process has already ended or was
// never started.
func (p *Process) Kill() {
	if p != nil {
		p.Process.Kill()
	}
}
