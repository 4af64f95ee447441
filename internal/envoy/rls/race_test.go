//go:build race

package rls

// slowdown is the factor by which the race detector may slow down a test.
const slowdown = 20
