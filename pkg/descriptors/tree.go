package descriptors

import "slices"

// node is one descriptor of the rules. Following parent leads up to the top level, whose nodes have none.
type node struct {
	key, value string // as written; an empty value matches any
	parent     *node
	rule       *Rule  // nil if there is no limit
	children   *level // nil if there are none
	keyGlob    *glob  // nil unless the key contains a *
	valueGlob  *glob  // nil unless the value contains a *
	order      int32  // position among the nodes of its level, in the order of the files
	file       int32  // index into Set.files
	at         mark
	flags      nodeFlags
}

// nodeFlags are the switches of a node.
type nodeFlags uint8

const (
	detailedMetric nodeFlags = 1 << iota
	valueToMetric
	shareThreshold
)

// isWildcard reports whether the node's key or value is a pattern.
func (n *node) isWildcard() bool { return n.keyGlob != nil || n.valueGlob != nil }

// label returns the node as the reference spells it: key, or key_value.
func (n *node) label() string { return step{n.key, n.value}.String() }

// path returns the nodes from the top level down to n.
func (n *node) path() []*node {
	var out []*node
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

// level is the nodes below one node. The zero level is empty.
type level struct {
	nodes  []*node // in the order of the files
	groups []*group
	byKey  map[string]*group // nil unless there are more than a few groups
	wild   []*node           // nodes whose key is a pattern, in the order of the files
}

// group is the nodes of a level with the same key.
type group struct {
	key     string
	bare    *node            // the node without a value, or nil
	exact   []*node          // those with a value, including wildcards: a request's value may be the pattern itself
	byValue map[string]*node // nil unless there are more than a few of them
	wild    *globIndex       // those whose value is a pattern and whose key is not; nil if there are none
}

// add adds a node to the level. If the level already has a node with the same key and value, it returns that one
// instead.
func (l *level) add(n *node) (earlier *node) {
	g := l.group([]byte(n.key))
	switch {
	case g == nil:
		g = &group{key: n.key}
		l.addGroup(g)
	case n.value == "" && g.bare != nil:
		return g.bare
	case n.value != "":
		if earlier = g.exactly([]byte(n.value)); earlier != nil {
			return earlier
		}
	}
	n.order = int32(len(l.nodes))
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

func (l *level) addGroup(g *group) {
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

func (g *group) addNode(n *node) {
	if n.value == "" {
		g.bare = n
		return
	}
	g.exact = append(g.exact, n)
	switch {
	case g.byValue != nil:
		g.byValue[n.value] = n
	case len(g.exact) > few:
		g.byValue = make(map[string]*node)
		for _, n := range g.exact {
			g.byValue[n.value] = n
		}
	}
}

// globIndex finds the first of many patterns, in the order of the files, that matches a value. It tries only those
// whose literal beginning the value shares. The zero globIndex is empty.
type globIndex struct {
	nodes    []*node // in the order of the files
	byPrefix map[string][]*node
	lengths  []int // of the prefixes in byPrefix, ascending
}

func (x *globIndex) add(n *node) {
	x.nodes = append(x.nodes, n)
	switch {
	case x.byPrefix != nil:
		x.index(n)
	case len(x.nodes) > few:
		x.byPrefix = make(map[string][]*node)
		for _, n := range x.nodes {
			x.index(n)
		}
	}
}

func (x *globIndex) index(n *node) {
	prefix := n.valueGlob.prefix
	prefix = prefix[:min(len(prefix), maxIndexedPrefix)]
	x.byPrefix[prefix] = append(x.byPrefix[prefix], n)
	if i, found := slices.BinarySearch(x.lengths, len(prefix)); !found {
		x.lengths = slices.Insert(x.lengths, i, len(prefix))
	}
}

// first returns the first node whose pattern matches value, or nil.
func (x *globIndex) first(value []byte) *node {
	if x.byPrefix == nil {
		return firstMatch(x.nodes, value)
	}
	var best *node
	for _, length := range x.lengths {
		if length > len(value) {
			break
		}
		n := firstMatch(x.byPrefix[string(value[:length])], value)
		if n != nil && (best == nil || n.order < best.order) {
			best = n
		}
	}
	return best
}

// candidates returns the nodes that first tries for a value, as lists in the order of the files.
func (x *globIndex) candidates(value []byte) [][]*node {
	if x.byPrefix == nil {
		return [][]*node{x.nodes}
	}
	var out [][]*node
	for _, length := range x.lengths {
		if length <= len(value) {
			out = append(out, x.byPrefix[string(value[:length])])
		}
	}
	return out
}

func firstMatch(nodes []*node, value []byte) *node {
	for _, n := range nodes {
		if n.valueGlob.match(value) {
			return n
		}
	}
	return nil
}
