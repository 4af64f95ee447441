//go:build unix

package server

import (
	"math"
	"syscall"
)

// maxFiles returns the maximum number of open files of this process.
func maxFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt32
	}
	return int(min(uint64(limit.Cur), math.MaxInt32)) //nolint:unconvert // Cur is signed on some systems
}
