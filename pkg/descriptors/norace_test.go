//go:build !race

package descriptors_test

// many is how many rules large files have.
const many = 100_000
