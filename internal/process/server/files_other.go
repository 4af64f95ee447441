//go:build !unix

package server

import "math"

// maxFiles returns the maximum number of open files of this process; unknown on this system.
func maxFiles() int { return math.MaxInt32 }
