package proc

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Processors returns two processors that this process may use, one for the measured program and one for the load.
func Processors() (theirs, ours int, err error) {
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return 0, 0, fmt.Errorf("asking for processors: %w", err)
	}
	var some []int
	for i := range 1024 {
		if may.IsSet(i) {
			some = append(some, i)
		}
	}
	if len(some) < 2 {
		return 0, 0, fmt.Errorf("want two processors, one of them for the load; there is %d", len(some))
	}
	return some[0], some[1], nil
}
