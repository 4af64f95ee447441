// Package examples has configurations that show ratelimitd at work, and the tests that keep them correct: every file is
// decoded into the types of the program that reads it in production, with unknown fields rejected, and whatever can be
// run is run.
package examples
