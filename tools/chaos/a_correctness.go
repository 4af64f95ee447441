package main

// correctness returns the checks of group A.
func correctness() []check { return nil }
