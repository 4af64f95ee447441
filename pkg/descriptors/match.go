package descriptors

import (
	"cmp"
	"strings"
	"unicode/utf8"
)

// Match finds the node of a descriptor. Each entry descends one level: to the node with its key and value; otherwise to the first
// matching wildcard in file order; otherwise to the node with its key and no value. It never backtracks. A rule matches only if the last
// entry leads to it, so a descriptor with more or fewer entries than the rule has keys does not match. Match does not allocate.
func (d *Domain) Match(entries []Entry) Match {
	l := &d.root
	var n *Node
	for i := range entries {
		if l == nil {
			return Match{months: d.months}
		}
		if n = l.Find(&entries[i]); n == nil {
			return Match{months: d.months}
		}
		l = n.Children
	}
	if n == nil {
		return Match{months: d.months}
	}
	return Match{Rule: n.Rule, node: n, months: d.months}
}

// Example returns entries for the rule, with x for each * of a value, and with value for nodes without one. Another rule may take
// precedence.
func (r *Rule) Example(value string) (entries []Entry) {
	for _, n := range r.node.path() {
		like := cmp.Or(strings.ReplaceAll(n.Value, "*", "x"), value)
		entries = append(entries, Entry{Key: []byte(n.Key), Value: []byte(like)})
	}
	return entries
}

// Find returns the node that matches an entry, or nil. An empty or invalid UTF-8 key matches nothing, because files are UTF-8; values may
// be arbitrary bytes.
func (l *Level) Find(e *Entry) *Node {
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

// findWild implements Find without an exact match on a level that has patterns as keys. g may be nil.
func (l *Level) findWild(g *group, e *Entry) *Node {
	if len(e.Key) == 0 || !utf8.Valid(e.Key) {
		return nil
	}
	var best *Node
	if g != nil && g.wild != nil {
		best = g.wild.first(e.Value)
	}
	for _, n := range l.wild {
		if best != nil && best.Order < n.Order {
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

// fits reports whether n, a wildcard, matches the entry.
func (n *Node) fits(e *Entry) bool {
	if n.keyGlob == nil {
		return string(e.Key) == n.Key && n.valueGlob.Match(e.Value)
	}
	return n.matches(e)
}

// matches reports whether n, whose key is a pattern, matches the entry.
func (n *Node) matches(e *Entry) bool {
	switch {
	case !n.keyGlob.Match(e.Key):
		return false
	case n.valueGlob != nil:
		return n.valueGlob.Match(e.Value)
	case n.Value != "":
		return string(e.Value) == n.Value
	}
	return true
}

// group returns the group of a key, or nil.
func (l *Level) group(key []byte) *group {
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

// exactly returns the node with a value, or nil.
func (g *group) exactly(value []byte) *Node {
	if g.byValue != nil {
		return g.byValue[string(value)]
	}
	for _, n := range g.exact {
		if string(value) == n.Value {
			return n
		}
	}
	return nil
}
