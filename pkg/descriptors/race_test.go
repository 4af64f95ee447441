//go:build race

package descriptors_test

// many is how many rules large files have; the race detector makes loading ten times slower.
const many = 10_000
