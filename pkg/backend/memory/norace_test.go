//go:build !race

package memory_test

// million is how many counters a test of many fills.
const million = 1_000_000
