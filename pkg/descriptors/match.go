package descriptors

import (
	"cmp"
	"strings"
	"unicode/utf8"
)

// Match finds the node for the entries of a descriptor. Each entry goes one level down: to the node with its key and
// value or, if there is none, to the first wildcard of the file that fits or, failing that, to the node with its key
// and no value. It never backtracks. A rule is found only if the last entry leads to it, so a descriptor with more or
// fewer entries than the rule has keys does not match. Match does not allocate.
func (d *Domain) Match(entries []Entry) Match {
	l := &d.root
	var n *node
	for i := range entries {
		if l == nil {
			return Match{months: d.months}
		}
		if n = l.find(&entries[i]); n == nil {
			return Match{months: d.months}
		}
		l = n.children
	}
	if n == nil {
		return Match{months: d.months}
	}
	return Match{Rule: n.rule, node: n, months: d.months}
}

// Example returns the entries of a descriptor that the rule is for, with an x for each * of a value, and with value where
// any is as good. Another rule may still take it.
func (r *Rule) Example(value string) (entries []Entry) {
	for _, n := range r.node.path() {
		like := cmp.Or(strings.ReplaceAll(n.value, "*", "x"), value)
		entries = append(entries, Entry{Key: []byte(n.key), Value: []byte(like)})
	}
	return entries
}

// find returns the node that an entry leads to, or nil. An empty key leads nowhere, and neither does one that is not
// valid UTF-8, because files are UTF-8; values may be any bytes.
func (l *level) find(e *Entry) *node {
	g := l.group(e.Key)
	if g != nil {
		if n := g.exactly(e.Value); n != nil {
			return n
		}
		if len(l.wild) == 0 {
			if g.wild != nil {
				if n := g.wild.first(e.Value); n != nil {
					return n
				}
			}
			return g.bare
		}
	}
	if len(l.wild) == 0 {
		return nil
	}
	return l.findWild(g, e)
}

// findWild is find for a level on which some keys are patterns, when there is no exact match. g may be nil.
func (l *level) findWild(g *group, e *Entry) *node {
	if len(e.Key) == 0 || !utf8.Valid(e.Key) {
		return nil
	}
	var best *node
	if g != nil && g.wild != nil {
		best = g.wild.first(e.Value)
	}
	for _, n := range l.wild {
		if best != nil && best.order < n.order {
			break
		}
		if n.matches(e) {
			best = n
			break
		}
	}
	if best == nil && g != nil {
		best = g.bare
	}
	return best
}

// fits reports whether the entry fits n, which is a wildcard.
func (n *node) fits(e *Entry) bool {
	if n.keyGlob == nil {
		return string(e.Key) == n.key && n.valueGlob.match(e.Value)
	}
	return n.matches(e)
}

// matches reports whether the entry fits n, whose key is a pattern.
func (n *node) matches(e *Entry) bool {
	switch {
	case !n.keyGlob.match(e.Key):
		return false
	case n.valueGlob != nil:
		return n.valueGlob.match(e.Value)
	case n.value != "":
		return string(e.Value) == n.value
	}
	return true
}

func (l *level) group(key []byte) *group {
	if l.byKey != nil {
		return l.byKey[string(key)]
	}
	for _, g := range l.groups {
		if string(key) == g.key {
			return g
		}
	}
	return nil
}

func (g *group) exactly(value []byte) *node {
	if g.byValue != nil {
		return g.byValue[string(value)]
	}
	for _, n := range g.exact {
		if string(value) == n.value {
			return n
		}
	}
	return nil
}
