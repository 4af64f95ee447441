//go:build race

package memory_test

// million is how many counters a test of many fills; the race detector makes that twenty times slower.
const million = 100_000
