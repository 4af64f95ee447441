package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
	"golang.org/x/sys/unix"
)

// cores are two processors, one for what is measured and one for who measures.
type cores struct{ theirs, ours int }

// pin keeps this process on a processor of its own until the check is over, and says on which one the others are to be
// (Processors). With a single processor there is nothing to pin, and figures mean little; the error is of that.
func (e *env) pin() (cores, error) {
	theirs, ours, err := proc.Processors()
	if err != nil {
		return cores{}, err
	}
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return cores{}, fmt.Errorf("asking for processors: %w", err)
	}
	var own unix.CPUSet
	own.Set(ours)
	before := runtime.GOMAXPROCS(1)
	setAffinity(own)
	e.atEnd(func() {
		setAffinity(all)
		runtime.GOMAXPROCS(before)
	})
	return cores{theirs, ours}, nil
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
func spent(cpu int) time.Duration {
	return proc.Worked(fmt.Sprintf("cpu%d", cpu), 0, 1, 2, 5, 6, 7) // user, nice, system, irq, softirq, steal
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
