//go:build !race

package memory_test

// million is the number of counters in large tests.
const million = 1_000_000
