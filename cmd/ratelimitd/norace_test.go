//go:build !race

package main

// What tests ask of servers: as much as two processors do in the time that a test may take.
const (
	loadRate    = 2000    // requests a second while Redis fails
	ladderCalls = 20_000  // for a limit of 1,000
	manyValues  = 100_000 // that never come again
)
