package descriptors

import "slices"

// node is one descriptor of the rules. Its parents lead to the root; those at the top have none.
type node struct {
	key, value string // as written; an empty value stands for any
	parent     *node
	rule       *Rule  // nil without a limit
	children   *level // nil without
	keyGlob    *glob  // where the key holds a *
	valueGlob  *glob  // where the value holds a *
	order      int32  // among those of its level, in the order of the files
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

// isWildcard reports whether the node stands among the wildcards of its level.
func (n *node) isWildcard() bool { return n.keyGlob != nil || n.valueGlob != nil }

// label is the node as the reference spells it: key, or key_value.
func (n *node) label() string { return step{n.key, n.value}.String() }

// path is the nodes from the top down to n.
func (n *node) path() []*node {
	var out []*node
	for ; n != nil; n = n.parent {
		out = append(out, n)
	}
	slices.Reverse(out)
	return out
}

// maxIndexedPrefix bounds how much of a pattern's beginning is looked up, and so how often.
const maxIndexedPrefix = 16

// few is up to how many elements are looked through rather than looked up.
const few = 4

// level is the nodes below one node. The zero level is empty.
type level struct {
	nodes  []*node // in the order of the files
	groups []*group
	byKey  map[string]*group // where there are more than a few groups
	wild   []*node           // whose key is a pattern, in the order of the files
}

// group is the nodes of a level that have one key.
type group struct {
	key     string
	bare    *node            // without a value
	exact   []*node          // with one, wildcards included: a value may spell a pattern
	byValue map[string]*node // where there are more than a few of them
	wild    *globIndex       // those whose value is a pattern and whose key is none; nil without
}

// add puts a node into the level; it returns the node that is there already under its key and value, or nil.
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

// globIndex finds the first of many patterns that a value matches, in the order of the files. It looks only at those
// whose literal beginning the value has. The zero globIndex is empty.
type globIndex struct {
	nodes    []*node // in the order of the files
	byPrefix map[string][]*node
	lengths  []int // of the prefixes in byPrefix, rising
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

// first is the first node whose pattern value matches, or nil.
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

func firstMatch(nodes []*node, value []byte) *node {
	for _, n := range nodes {
		if n.valueGlob.match(value) {
			return n
		}
	}
	return nil
}
