package main

import (
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
	"golang.org/x/sys/unix"
)

// pin moves this process to a processor of its own until the check ends, and new processes to another one. It ends the check on a
// machine with a single processor.
func (e *env) pin() {
	theirs, ours, err := proc.Processors()
	e.must(err)
	var all unix.CPUSet
	e.must(unix.SchedGetaffinity(0, &all))
	var own unix.CPUSet
	own.Set(ours)
	before := runtime.GOMAXPROCS(1)
	setAffinity(own)
	e.atEnd(func() {
		setAffinity(all)
		runtime.GOMAXPROCS(before)
	})
	e.theirs = strconv.Itoa(theirs)
}

// setAffinity sets the processors of all threads of this process.
func setAffinity(set unix.CPUSet) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range threads {
		if id, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.SchedSetaffinity(id, &set) // a thread may have ended
		}
	}
}

// spent returns the busy time of a processor, for all processes and its hypervisor.
func spent(cpu string) time.Duration {
	return proc.Worked("cpu"+cpu, 0, 1, 2, 5, 6, 7) // user, nice, system, irq, softirq, steal
}

// othersShare returns a function that returns the share of all processors that other processes have used since. The children of
// this process must have ended by then.
func othersShare() func() float64 {
	theirs := func() time.Duration {
		sum := proc.Worked("cpu", 0, 1, 2, 7) // user, nice, system, steal; network interrupts belong to no process
		for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
			var u unix.Rusage
			if unix.Getrusage(who, &u) == nil {
				sum -= time.Duration(u.Utime.Nano() + u.Stime.Nano())
			}
		}
		return sum
	}
	begin, before := time.Now(), theirs()
	return func() float64 {
		return float64(theirs()-before) / float64(time.Since(begin)) / float64(runtime.NumCPU())
	}
}
