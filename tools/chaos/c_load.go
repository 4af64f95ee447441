package main

// loads returns the checks of group C.
func loads() []check { return nil }
