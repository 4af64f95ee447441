//go:build !race

package rls

// slowdown is none without the race detector.
const slowdown = 1
