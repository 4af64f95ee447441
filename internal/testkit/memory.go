package testkit

import (
	"fmt"
	"os"
	"testing"
)

// Resident returns how much memory the process has, in bytes.
func (p *Process) Resident(tb testing.TB) int {
	tb.Helper()
	return p.memory(tb, "VmRSS")
}

// Peak returns the most memory that the process had since [Process.ResetPeak], or else since its start, in bytes.
func (p *Process) Peak(tb testing.TB) int {
	tb.Helper()
	return p.memory(tb, "VmHWM")
}

// ResetPeak lets the peak start again, at what the process has now.
func (p *Process) ResetPeak(tb testing.TB) {
	tb.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.PID()), []byte("5"), 0); err != nil {
		tb.Fatal(err)
	}
}

// memory returns a size from the process' status.
func (p *Process) memory(tb testing.TB, name string) int {
	tb.Helper()
	n, err := p.Memory(name)
	if err != nil {
		tb.Fatal(err)
	}
	return int(n)
}
