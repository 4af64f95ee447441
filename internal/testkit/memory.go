package testkit

import (
	"fmt"
	"os"
	"testing"
)

// Resident returns the memory of the process in bytes.
func (p *Process) Resident(tb testing.TB) int {
	tb.Helper()
	return p.memory(tb, "VmRSS")
}

// Peak returns the maximum memory of the process in bytes since [Process.ResetPeak] or its start.
func (p *Process) Peak(tb testing.TB) int {
	tb.Helper()
	return p.memory(tb, "VmHWM")
}

// ResetPeak resets the peak to the current memory.
func (p *Process) ResetPeak(tb testing.TB) {
	tb.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.PID()), []byte("5"), 0); err != nil {
		tb.Fatal(err)
	}
}

// memory returns a size from the process's status.
func (p *Process) memory(tb testing.TB, name string) int {
	tb.Helper()
	n, err := p.Memory(name)
	if err != nil {
		tb.Fatal(err)
	}
	return int(n)
}
