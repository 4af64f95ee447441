//go:build race

package rls

// slowdown is how many times as long as without the race detector something may take.
const slowdown = 20
