// Package examples holds configurations that show ratelimitd at work, and the tests that keep them true: every file is
// decoded into the types of whoever reads it in earnest, unknown fields are refused, and what can be run is run.
package examples
