package testkit

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
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

// ResetPeak lets the peak begin anew, at what the process has now.
func (p *Process) ResetPeak(tb testing.TB) {
	tb.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.PID()), []byte("5"), 0); err != nil {
		tb.Fatal(err)
	}
}

// memory returns a line of the process' status, as Linux has it.
func (p *Process) memory(tb testing.TB, name string) int {
	tb.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		tb.Fatal(err)
	}
	line := regexp.MustCompile(name + `:\s+(\d+) kB`).FindSubmatch(status)
	if line == nil {
		tb.Fatalf("testkit: the status of the process has no %s:\n%s", name, status)
	}
	n, err := strconv.Atoi(string(line[1]))
	if err != nil {
		tb.Fatal(err)
	}
	return n << 10
}
