// Package schema compares the JSON Schema of rules with the code that loads them. Its own module keeps the validator's
// dependencies out of the main module.
package schema
