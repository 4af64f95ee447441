//go:build race

package top_test

const raceEnabled = true
