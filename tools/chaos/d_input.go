package main

// badInput returns the checks of group D.
func badInput() []check { return nil }
