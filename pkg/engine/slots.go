package engine

import (
	"cmp"
	"strings"
)

// slots holds groups of slots in two balanced trees over the same nodes: one ordered by end, with sums, and one by owner. So every
// operation takes logarithmic time. The trees are AVL trees: their shape depends only on the sequence of operations, and no choice of
// owners makes them deep.
type slots struct {
	nodes []group
	roots [2]index
	free  index // first unused node; each unused node links to the next as a child
	count uint16
}

// index is the number of a node, starting at 1; 0 means none.
type index uint16

// The two trees.
const (
	byEnd = iota
	byOwner
)

// group is a set of slots with the same owner and end, and a node in both trees.
type group struct {
	taken  Micros // or renewed
	end    Micros
	owner  string // empty for slots without an owner
	n      uint16 // at most maxStamps
	sum    uint16 // its own slots and those of all nodes below it in byEnd
	below  [2][2]index
	height [2]uint8
}

func (s *slots) at(i index) *group { return &s.nodes[i-1] }

// less orders groups: byEnd by end, then by the time of taking; byOwner by owner, with groups without an owner first, in the order of
// byEnd.
func (s *slots) less(tree int, i, j index) bool {
	g, h := s.at(i), s.at(j)
	if tree == byOwner {
		c := h.after(g.owner, g.end, g.taken)
		return c > 0 || c == 0 && i < j
	}
	switch {
	case g.end != h.end:
		return g.end < h.end
	case g.taken != h.taken:
		return g.taken < h.taken
	}
	return i < j
}

// after compares g with another group in the order of byOwner. The result is positive if g comes after it.
func (g *group) after(owner string, end, taken Micros) int {
	switch {
	case g.owner != "" || owner != "":
		return strings.Compare(g.owner, owner)
	case g.end != end:
		return cmp.Compare(g.end, end)
	}
	return cmp.Compare(g.taken, taken)
}

// all returns the number of slots.
func (s *slots) all() uint64 { return s.sumOf(s.roots[byEnd]) }

func (s *slots) sumOf(i index) uint64 {
	if i == 0 {
		return 0
	}
	return uint64(s.at(i).sum)
}

// add adds a group and copies its owner's name.
func (s *slots) add(g group) {
	i := s.free
	if i > 0 {
		s.free = s.at(i).below[0][0]
	} else {
		if n := len(s.nodes); n == cap(s.nodes) && n >= 64 { // append would grow it by at least a quarter
			s.nodes = append(make([]group, 0, n+n/8), s.nodes...)
		}
		s.nodes = append(s.nodes, group{})
		i = index(len(s.nodes))
	}
	g.owner = strings.Clone(g.owner)
	*s.at(i) = g
	s.count++
	s.insert(byEnd, i)
	s.insert(byOwner, i)
}

// remove removes a group. It frees memory if most nodes are unused.
func (s *slots) remove(i index) {
	s.cut(byEnd, i)
	s.cut(byOwner, i)
	*s.at(i) = group{}
	s.at(i).below[0][0] = s.free
	s.free = i
	s.count--
	if len(s.nodes) > 64 && len(s.nodes) > 8*int(s.count) {
		*s = *s.clone()
	}
}

// clone returns a copy without unused nodes.
func (s *slots) clone() *slots {
	c := &slots{nodes: make([]group, 0, s.count)}
	s.each(s.roots[byEnd], c.add)
	return c
}

// each calls f for each group below i, ordered by end.
func (s *slots) each(i index, f func(group)) {
	if i > 0 {
		s.each(s.at(i).below[byEnd][0], f)
		f(*s.at(i))
		s.each(s.at(i).below[byEnd][1], f)
	}
}

// resize changes the number of slots of a group.
func (s *slots) resize(i index, n uint64) {
	g := s.at(i)
	by := uint16(n) - g.n // modulo 2^16, like the sums
	g.n += by
	for j := s.roots[byEnd]; ; j = s.at(j).below[byEnd][s.side(byEnd, i, j)] {
		s.at(j).sum += by
		if j == i {
			return
		}
	}
}

// renew changes the times of a group with an owner.
func (s *slots) renew(i index, taken, end Micros) {
	s.cut(byEnd, i)
	s.at(i).taken, s.at(i).end = taken, end
	s.insert(byEnd, i)
}

// find returns the group of an owner or, if owner is empty, the ownerless group with the given times; 0 if there is none.
func (s *slots) find(owner string, end, taken Micros) index {
	i := s.roots[byOwner]
	for i > 0 {
		switch c := s.at(i).after(owner, end, taken); {
		case c == 0:
			return i
		case c > 0:
			i = s.at(i).below[byOwner][0]
		default:
			i = s.at(i).below[byOwner][1]
		}
	}
	return 0
}

// first returns the first group of a tree, or 0.
func (s *slots) first(tree int) index { return s.outermost(tree, s.roots[tree], 0) }

// outermost returns the first group below i, or the last one if side is 1.
func (s *slots) outermost(tree int, i index, side int) index {
	for i > 0 && s.at(i).below[tree][side] > 0 {
		i = s.at(i).below[tree][side]
	}
	return i
}

// nth returns the group that contains the n-th slot, ordered by end, or 0 if there are fewer.
func (s *slots) nth(n uint64) index {
	i := s.roots[byEnd]
	for i > 0 {
		g := s.at(i)
		before := s.sumOf(g.below[byEnd][0])
		switch {
		case n <= before:
			i = g.below[byEnd][0]
		case n <= before+uint64(g.n):
			return i
		default:
			n -= before + uint64(g.n)
			i = g.below[byEnd][1]
		}
	}
	return 0
}

// over returns the number of slots that have ended at now.
func (s *slots) over(now Micros) (n uint64) {
	i := s.roots[byEnd]
	for i > 0 {
		g := s.at(i)
		if g.end > now {
			i = g.below[byEnd][0]
			continue
		}
		n += s.sumOf(g.below[byEnd][0]) + uint64(g.n)
		i = g.below[byEnd][1]
	}
	return n
}

// side returns the side of j on which the group i is, or would be inserted.
func (s *slots) side(tree int, i, j index) int {
	if s.less(tree, i, j) {
		return 0
	}
	return 1
}

// insert adds a node to a tree.
func (s *slots) insert(tree int, i index) {
	s.at(i).below[tree] = [2]index{}
	s.update(tree, i)
	s.roots[tree] = s.insertBelow(tree, s.roots[tree], i)
}

// insertBelow inserts i below a root and returns the new root.
func (s *slots) insertBelow(tree int, root, i index) index {
	if root == 0 {
		return i
	}
	side := s.side(tree, i, root)
	s.at(root).below[tree][side] = s.insertBelow(tree, s.at(root).below[tree][side], i)
	return s.balance(tree, root)
}

// cut removes a node from a tree.
func (s *slots) cut(tree int, i index) { s.roots[tree] = s.cutBelow(tree, s.roots[tree], i) }

// cutBelow removes i, which must exist, from the tree below a root and returns the new root.
func (s *slots) cutBelow(tree int, root, i index) index {
	if root != i {
		side := s.side(tree, i, root)
		s.at(root).below[tree][side] = s.cutBelow(tree, s.at(root).below[tree][side], i)
		return s.balance(tree, root)
	}
	below := s.at(i).below[tree]
	if below[0] == 0 || below[1] == 0 {
		return below[0] + below[1]
	}
	next := s.outermost(tree, below[1], 0)
	right := s.cutBelow(tree, below[1], next)
	s.at(next).below[tree] = [2]index{below[0], right}
	return s.balance(tree, next)
}

// update computes the height and the sum of a node from its children.
func (s *slots) update(tree int, i index) {
	g := s.at(i)
	left, right := g.below[tree][0], g.below[tree][1]
	g.height[tree] = 1 + max(s.height(tree, left), s.height(tree, right))
	if tree == byEnd {
		g.sum = g.n + uint16(s.sumOf(left)) + uint16(s.sumOf(right))
	}
}

func (s *slots) height(tree int, i index) uint8 {
	if i == 0 {
		return 0
	}
	return s.at(i).height[tree]
}

// balance updates i, whose sides may differ in height by two, and returns the new root in its place.
func (s *slots) balance(tree int, i index) index {
	s.update(tree, i)
	for high := range 2 {
		child := s.at(i).below[tree][high]
		if s.height(tree, child) <= s.height(tree, s.at(i).below[tree][1-high])+1 {
			continue
		}
		if below := s.at(child).below[tree]; s.height(tree, below[1-high]) > s.height(tree, below[high]) {
			s.at(i).below[tree][high] = s.lift(tree, child, 1-high)
		}
		return s.lift(tree, i, high)
	}
	return i
}

// lift rotates the child of i on the given side into the place of i, and returns it.
func (s *slots) lift(tree int, i index, side int) index {
	child := s.at(i).below[tree][side]
	s.at(i).below[tree][side] = s.at(child).below[tree][1-side]
	s.at(child).below[tree][1-side] = i
	s.update(tree, i)
	s.update(tree, child)
	return child
}
