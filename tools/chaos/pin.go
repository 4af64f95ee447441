package main

import (
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
	"golang.org/x/sys/unix"
)

// pin keeps this process on a processor of its own until the check is over, and the processes that it starts from now on on another. A
// machine with a single processor ends the check.
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

// setAffinity sets where all threads of this process run.
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

// spent returns how long a processor has worked for all processes, and for the machine that it is a part of.
func spent(cpu string) time.Duration {
	return proc.Worked("cpu"+cpu, 0, 1, 2, 5, 6, 7) // user, nice, system, irq, softirq, steal
}

// othersShare returns a function that returns which share of all processors has since worked for other processes than this
// one and those that it has started, which must have ended by then.
func othersShare() func() float64 {
	theirs := func() time.Duration {
		sum := proc.Worked("cpu", 0, 1, 2, 7) // user, nice, system, steal; what the network does belongs to no process
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
