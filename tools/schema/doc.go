// Package schema compares the JSON Schema of the rules with what loads them. It has a module of its own for the sake of
// what it validates with.
package schema
