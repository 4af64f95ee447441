//go:build !race

package rls

// slowdown is the factor of the race detector, which is disabled.
const slowdown = 1
