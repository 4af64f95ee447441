//go:build race

package memory_test

// million is the number of counters in large tests; the race detector makes them twenty times slower.
const million = 100_000
