//go:build !race

package descriptors_test

// many is the number of rules in large files.
const many = 100_000
