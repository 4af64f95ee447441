package testkit

import (
	"os/exec"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// Process is a running program, which a test looks at.
type Process struct{ *proc.Process }

func start(cmd *exec.Cmd) (*Process, error) {
	p, err := proc.Start(cmd)
	if err != nil {
		return nil, err
	}
	return &Process{p}, nil
}

// Kill ends the process at once, as a crash would, and waits until it has ended. It does nothing if there is no process,
// or if it has ended already.
func (p *Process) Kill() {
	if p != nil {
		p.Process.Kill()
	}
}
