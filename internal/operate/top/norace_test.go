//go:build !race

package top_test

const raceEnabled = false
