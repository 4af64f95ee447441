//go:build race

package descriptors_test

// many is the number of rules in large files; the race detector makes loading ten times slower.
const many = 10_000
