package descriptors

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/leaf/glob"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
)

// Node is a descriptor in the rules. Nodes of the top level have no parent.
type Node struct {
	Key, Value string // as written; an empty value matches any value
	parent     *Node
	Rule       *Rule         // nil if it has no limit
	Children   *Level        // nil if it has none
	keyGlob    *glob.Pattern // nil unless the key contains a *
	valueGlob  *glob.Pattern // nil unless the value contains a *
	Order      int32         // position in its level, in file order
	file       int32         // index into Set.files
	at         rulefile.Mark
	flags      nodeFlags
}

// nodeFlags are the boolean keys of a node.
type nodeFlags uint8

const (
	detailedMetric nodeFlags = 1 << iota
	valueToMetric
	shareThreshold
)

// IsWildcard reports whether the node's key or value is a pattern.
func (n *Node) IsWildcard() bool { return n.keyGlob != nil || n.valueGlob != nil }

// Label returns the node as the reference writes it: key or key_value.
func (n *Node) Label() string { return rulefile.Step{Key: n.Key, Value: n.Value}.String() }

// path returns the nodes from the top level down to n.
func (n *Node) path() []*Node {
	var out []*Node
	for ; n != nil; n = n.parent {
		out = append(out, n)
	}
	slices.Reverse(out)
	return out
}

// maxIndexedPrefix bounds the indexed prefixes of patterns, and so the number of lookups per match.
const maxIndexedPrefix = 16

// few is the maximum number of elements for linear search; larger collections use a map.
const few = 4

// Level is the list of child nodes of a node. The zero Level is empty.
type Level struct {
	nodes  []*Node // in file order
	groups []*group
	byKey  map[string]*group // nil unless there are more than few groups
	wild   []*Node           // nodes whose key is a pattern, in file order
}

// group is the list of nodes of a level with the same key.
type group struct {
	key     string
	bare    *Node            // the node without a value, or nil
	exact   []*Node          // nodes with a value, including wildcards: a request's value may be the pattern itself
	byValue map[string]*Node // nil unless exact has more than few nodes
	wild    *globIndex       // nodes whose value is a pattern but whose key is not; nil if none
}

// add adds a node to the level. If the level already has a node with the same key and value, add returns that node and does nothing.
func (l *Level) add(n *Node) (earlier *Node) {
	g := l.group([]byte(n.Key))
	switch {
	case g == nil:
		g = &group{key: n.Key}
		l.addGroup(g)
	case n.Value == "" && g.bare != nil:
		return g.bare
	case n.Value != "":
		if earlier = g.exactly([]byte(n.Value)); earlier != nil {
			return earlier
		}
	}
	n.Order = int32(len(l.nodes))
	l.nodes = append(l.nodes, n)
	g.addNode(n)
	switch {
	case n.keyGlob != nil:
		l.wild = append(l.wild, n)
	case n.valueGlob != nil:
		if g.wild == nil {
			g.wild = new(globIndex)
		}
		g.wild.add(n)
	}
	return nil
}

// addGroup adds a group to the level.
func (l *Level) addGroup(g *group) {
	l.groups = append(l.groups, g)
	switch {
	case l.byKey != nil:
		l.byKey[g.key] = g
	case len(l.groups) > few:
		l.byKey = make(map[string]*group)
		for _, g := range l.groups {
			l.byKey[g.key] = g
		}
	}
}

// addNode adds a node to the group.
func (g *group) addNode(n *Node) {
	if n.Value == "" {
		g.bare = n
		return
	}
	g.exact = append(g.exact, n)
	switch {
	case g.byValue != nil:
		g.byValue[n.Value] = n
	case len(g.exact) > few:
		g.byValue = make(map[string]*Node)
		for _, n := range g.exact {
			g.byValue[n.Value] = n
		}
	}
}

// globIndex finds the first of many patterns, in file order, that matches a value. It tries only patterns whose literal prefix the value
// has. The zero globIndex is empty.
type globIndex struct {
	nodes    []*Node // in file order
	byPrefix map[string][]*Node
	lengths  []int // lengths of the prefixes in byPrefix, ascending
}

// add adds a node.
func (x *globIndex) add(n *Node) {
	x.nodes = append(x.nodes, n)
	switch {
	case x.byPrefix != nil:
		x.index(n)
	case len(x.nodes) > few:
		x.byPrefix = make(map[string][]*Node)
		for _, n := range x.nodes {
			x.index(n)
		}
	}
}

// index adds a node to byPrefix.
func (x *globIndex) index(n *Node) {
	prefix := n.valueGlob.Prefix
	prefix = prefix[:min(len(prefix), maxIndexedPrefix)]
	x.byPrefix[prefix] = append(x.byPrefix[prefix], n)
	if i, found := slices.BinarySearch(x.lengths, len(prefix)); !found {
		x.lengths = slices.Insert(x.lengths, i, len(prefix))
	}
}

// first returns the first node whose pattern matches value, or nil.
func (x *globIndex) first(value []byte) *Node {
	if x.byPrefix == nil {
		return firstMatch(x.nodes, value)
	}
	var best *Node
	for _, length := range x.lengths {
		if length > len(value) {
			break
		}
		n := firstMatch(x.byPrefix[string(value[:length])], value)
		if n != nil && (best == nil || n.Order < best.Order) {
			best = n
		}
	}
	return best
}

// candidates returns the nodes that first tries for value, as lists in file order.
func (x *globIndex) candidates(value []byte) [][]*Node {
	if x.byPrefix == nil {
		return [][]*Node{x.nodes}
	}
	var out [][]*Node
	for _, length := range x.lengths {
		if length <= len(value) {
			out = append(out, x.byPrefix[string(value[:length])])
		}
	}
	return out
}

// firstMatch returns the first node whose pattern matches value, or nil.
func firstMatch(nodes []*Node, value []byte) *Node {
	for _, n := range nodes {
		if n.valueGlob.Match(value) {
			return n
		}
	}
	return nil
}

// Nodes returns the nodes of the level in file order. l may be nil. The caller must not modify the nodes.
func (l *Level) Nodes() []*Node {
	if l == nil {
		return nil
	}
	return l.nodes
}

// Same returns the node of l with n's key and value, or nil. l may be nil.
func (l *Level) Same(n *Node) *Node {
	if l == nil {
		return nil
	}
	g := l.group([]byte(n.Key))
	switch {
	case g == nil:
		return nil
	case n.Value == "":
		return g.bare
	}
	return g.exactly([]byte(n.Value))
}

// Root returns the top level of the domain.
func (d *Domain) Root() *Level { return &d.root }

// Place returns the position of a node of the set, for people.
func (s *Set) Place(n *Node) string {
	in := rulefile.Report{Indent: s.indents[n.file]}
	return in.InFile(n.at).In(s.files[n.file])
}

// DetailedMetric reports whether the node has detailed_metric.
func (n *Node) DetailedMetric() bool { return n.flags&detailedMetric != 0 }

// ValueToMetric reports whether the node has value_to_metric.
func (n *Node) ValueToMetric() bool { return n.flags&valueToMetric != 0 }

// ShareThreshold reports whether the node has share_threshold.
func (n *Node) ShareThreshold() bool { return n.flags&shareThreshold != 0 }
