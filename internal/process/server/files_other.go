//go:build !unix

package server

import "math"

// maxFiles returns how many files this process may have open.
func maxFiles() int { return math.MaxInt32 }
