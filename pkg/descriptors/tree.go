package descriptors

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/leaf/glob"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
)

// Node is one descriptor of the rules. Following parent leads up to the top level, whose nodes have none.
type Node struct {
	Key, Value string // as written; an empty value matches any
	parent     *Node
	Rule       *Rule         // nil if there is no limit
	Children   *Level        // nil if there are none
	keyGlob    *glob.Pattern // nil unless the key contains a *
	valueGlob  *glob.Pattern // nil unless the value contains a *
	Order      int32         // position among the nodes of its level, in the order of the files
	file       int32         // index into Set.files
	at         rulefile.Mark
	flags      nodeFlags
}

// nodeFlags are the switches of a node.
type nodeFlags uint8

const (
	detailedMetric nodeFlags = 1 << iota
	valueToMetric
	shareThreshold
)

// IsWildcard reports whether the node's key or value is a pattern.
func (n *Node) IsWildcard() bool { return n.keyGlob != nil || n.valueGlob != nil }

// Label returns the node as the reference spells it: key, or key_value.
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

// maxIndexedPrefix bounds how much of a pattern's literal beginning is indexed, and so the number of lookups per match.
const maxIndexedPrefix = 16

// few is the number of elements up to which a linear search replaces a map.
const few = 4

// Level is the nodes below one node. The zero level is empty.
type Level struct {
	nodes  []*Node // in the order of the files
	groups []*group
	byKey  map[string]*group // nil unless there are more than a few groups
	wild   []*Node           // nodes whose key is a pattern, in the order of the files
}

// group is the nodes of a level with the same key.
type group struct {
	key     string
	bare    *Node            // the node without a value, or nil
	exact   []*Node          // those with a value, including wildcards: a request's value may be the pattern itself
	byValue map[string]*Node // nil unless there are more than a few of them
	wild    *globIndex       // those whose value is a pattern and whose key is not; nil if there are none
}

// add adds a node to the level. If the level already has a node with the same key and value, it returns that one
// instead.
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

// globIndex finds the first of many patterns, in the order of the files, that matches a value. It tries only those
// whose literal beginning the value shares. The zero globIndex is empty.
type globIndex struct {
	nodes    []*Node // in the order of the files
	byPrefix map[string][]*Node
	lengths  []int // of the prefixes in byPrefix, ascending
}

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

// candidates returns the nodes that first tries for a value, as lists in the order of the files.
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

func firstMatch(nodes []*Node, value []byte) *Node {
	for _, n := range nodes {
		if n.valueGlob.Match(value) {
			return n
		}
	}
	return nil
}

// Nodes returns the nodes of the level, which may be nil, in the order of the files. They must not be changed.
func (l *Level) Nodes() []*Node {
	if l == nil {
		return nil
	}
	return l.nodes
}

// Same returns the node of l with the key and value of n, or nil.
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

// Root returns the top level of the domain's tree.
func (d *Domain) Root() *Level { return &d.root }

// Place returns where a node of the set is defined, for people.
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
