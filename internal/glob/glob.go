// Package glob matches texts with patterns in which a * stands for any text.
package glob

import (
	"bytes"
	"strings"
)

// Pattern is a pattern in which each * stands for any number of bytes, including none. There is no escape.
type Pattern struct {
	Prefix, suffix string
	middle         [][]byte // literals between two *, in order
	Literals       int      // bytes of all literals together
}

// New returns the pattern of a text, or nil if it has no *.
func New(text string) *Pattern {
	pieces := strings.Split(text, "*")
	if len(pieces) == 1 {
		return nil
	}
	last := len(pieces) - 1
	g := &Pattern{Prefix: pieces[0], suffix: pieces[last]}
	g.Literals = len(g.Prefix) + len(g.suffix)
	for _, p := range pieces[1:last] {
		if p != "" {
			g.middle = append(g.middle, []byte(p))
			g.Literals += len(p)
		}
	}
	return g
}

// Match reports whether the whole of v fits. It never backtracks: the leftmost place of each literal is as good as any
// later one.
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
