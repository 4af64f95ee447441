//go:build race

package rlqs_test

const raceEnabled = true
