// Package glob matches texts against patterns with * as a wildcard.
//
// This package is part of the core.
package glob

import (
	"bytes"
	"slices"
	"strings"
)

// Pattern is a pattern in which each * matches any number of bytes, including none. There is no escape.
type Pattern struct {
	Prefix, suffix string
	middle         [][]byte // literals between two *, in order
	Literals       int      // total length of all literals in bytes
}

// New returns the pattern for a text, or nil if the text has no *.
func New(text string) *Pattern {
	stars := strings.Count(text, "*")
	if stars == 0 {
		return nil
	}
	pieces := bytes.Split([]byte(text), []byte("*"))
	return &Pattern{
		Prefix: text[:len(pieces[0])], suffix: text[len(text)-len(pieces[stars]):],
		middle:   slices.DeleteFunc(pieces[1:stars], func(p []byte) bool { return len(p) == 0 }),
		Literals: len(text) - stars,
	}
}

// Match reports whether the pattern matches all of v. It never backtracks: the leftmost match of each literal leaves the most room for
// the rest.
func (g *Pattern) Match(v []byte) bool {
	if len(v) < g.Literals || string(v[:len(g.Prefix)]) != g.Prefix || string(v[len(v)-len(g.suffix):]) != g.suffix {
		return false
	}
	v = v[len(g.Prefix) : len(v)-len(g.suffix)]
	for _, m := range g.middle {
		i := bytes.Index(v, m)
		if i < 0 {
			return false
		}
		v = v[i+len(m):]
	}
	return true
}
