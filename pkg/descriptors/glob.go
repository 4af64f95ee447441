package descriptors

import (
	"bytes"
	"strings"
)

// glob is a pattern in which each * stands for any number of bytes, including none. There is no escape.
type glob struct {
	prefix, suffix string
	middle         [][]byte // literals between two *, in order
	min            int      // bytes of all literals together
}

// newGlob returns the pattern of a text, or nil if it has no *.
func newGlob(text string) *glob {
	pieces := strings.Split(text, "*")
	if len(pieces) == 1 {
		return nil
	}
	last := len(pieces) - 1
	g := &glob{prefix: pieces[0], suffix: pieces[last]}
	g.min = len(g.prefix) + len(g.suffix)
	for _, p := range pieces[1:last] {
		if p != "" {
			g.middle = append(g.middle, []byte(p))
			g.min += len(p)
		}
	}
	return g
}

// match reports whether the whole of v fits. It never backtracks: the leftmost place of each literal is as good as any
// later one.
func (g *glob) match(v []byte) bool {
	if len(v) < g.min || string(v[:len(g.prefix)]) != g.prefix || string(v[len(v)-len(g.suffix):]) != g.suffix {
		return false
	}
	v = v[len(g.prefix) : len(v)-len(g.suffix)]
	for _, m := range g.middle {
		i := bytes.Index(v, m)
		if i < 0 {
			return false
		}
		v = v[i+len(m):]
	}
	return true
}
