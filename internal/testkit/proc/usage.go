package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Tick is the unit of times in /proc, which does not depend on the kernel's timer frequency.
const Tick = 10 * time.Millisecond

// Busy returns the processor time used by a process, according to Linux.
func Busy(pid int) (time.Duration, error) {
	text, err := os.ReadFile(proc(pid, "stat"))
	if err != nil {
		return 0, err
	}
	const user, system = 11, 12 // counted from the state, which follows the name in parentheses
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) <= system {
		return 0, fmt.Errorf("what is %q?", text)
	}
	var sum time.Duration
	for _, f := range []string{fields[user], fields[system]} {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n) * Tick
	}
	return sum, nil
}

// Worked returns the sum of the given times in a line of /proc/stat, such as "cpu0", or "cpu" for all processors. proc(5) describes the
// indexes in kinds. It returns 0 if the times cannot be read.
func Worked(cpu string, kinds ...int) time.Duration {
	all, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(all)) {
		rest, found := strings.CutPrefix(line, cpu+" ")
		if !found {
			continue
		}
		sum, fields := int64(0), strings.Fields(rest)
		for _, i := range kinds {
			if i < len(fields) {
				n, _ := strconv.ParseInt(fields[i], 10, 64)
				sum += n
			}
		}
		return time.Duration(sum) * Tick
	}
	return 0
}

// Memory returns a size in bytes from the process's status in Linux: VmRSS is the current memory, and VmHWM its maximum.
func (p *Process) Memory(name string) (int64, error) {
	status, err := os.ReadFile(proc(p.PID(), "status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == name+":" && fields[2] == "kB" {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("the status of process %d has no %s", p.PID(), name) // the process has ended
}
