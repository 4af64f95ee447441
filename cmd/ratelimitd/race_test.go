//go:build race

package main

// What tests ask of servers: under the race detector this process is slow, and shares two processors with the servers.
const (
	loadRate    = 500    // requests a second while Redis fails
	ladderCalls = 5_000  // for a limit of 1,000
	manyValues  = 20_000 // that never come again
)
