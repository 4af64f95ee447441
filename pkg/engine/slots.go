package engine

import (
	"cmp"
	"strings"
)

// slots holds groups of slots in two balanced trees over the same nodes: by when they end, with sums, and by owner. So
// whatever is asked or changed takes a time that grows with the logarithm of how many there are. The trees are AVL trees:
// what shape they have follows from what happened alone, and no choice of owners makes them deep.
type slots struct {
	nodes []group
	roots [2]index
	free  index // the first of the nodes that are not in use, each of which names the next as a child
	count uint16
}

// index is the number of a node, from 1; 0 is none.
type index uint16

// The two trees.
const (
	byEnd = iota
	byOwner
)

// group is a holder in both trees.
type group struct {
	taken  Micros // or renewed
	end    Micros
	owner  string // empty for slots without an owner
	n      uint16 // no limit has more than maxStamps slots
	sum    uint16 // of all below it in byEnd, and its own
	below  [2][2]index
	height [2]uint8
}

func (s *slots) at(i index) *group { return &s.nodes[i-1] }

// less orders groups: in byEnd the first to end first; in byOwner by owner, those without one as in byEnd before all
// others.
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

// after compares g with another group in the order of byOwner. It is positive if g comes after it.
func (g *group) after(owner string, end, taken Micros) int {
	switch {
	case g.owner != "" || owner != "":
		return strings.Compare(g.owner, owner)
	case g.end != end:
		return cmp.Compare(g.end, end)
	}
	return cmp.Compare(g.taken, taken)
}

// all returns how many slots are held.
func (s *slots) all() uint64 { return s.sumOf(s.roots[byEnd]) }

func (s *slots) sumOf(i index) uint64 {
	if i == 0 {
		return 0
	}
	return uint64(s.at(i).sum)
}

// add adds a group. Its owner's name is copied.
func (s *slots) add(g group) {
	i := s.free
	if i > 0 {
		s.free = s.at(i).below[0][0]
	} else {
		if n := len(s.nodes); n == cap(s.nodes) && n >= 64 { // append would grow it by a quarter and more
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

// remove removes a group, and frees memory once there are far fewer than there were.
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

// clone returns a copy that has no free nodes.
func (s *slots) clone() *slots {
	c := &slots{nodes: make([]group, 0, s.count)}
	s.each(s.roots[byEnd], c.add)
	return c
}

// each calls f with each group below i, the first to end first.
func (s *slots) each(i index, f func(group)) {
	if i > 0 {
		s.each(s.at(i).below[byEnd][0], f)
		f(*s.at(i))
		s.each(s.at(i).below[byEnd][1], f)
	}
}

// resize changes how many slots a group has.
func (s *slots) resize(i index, n uint64) {
	g := s.at(i)
	by := uint16(n) - g.n // modulo 2^16, as the sums are
	g.n += by
	for j := s.roots[byEnd]; ; j = s.at(j).below[byEnd][s.side(byEnd, i, j)] {
		s.at(j).sum += by
		if j == i {
			return
		}
	}
}

// renew changes when a group that has an owner was taken, and when it ends.
func (s *slots) renew(i index, taken, end Micros) {
	s.cut(byEnd, i)
	s.at(i).taken, s.at(i).end = taken, end
	s.insert(byEnd, i)
}

// find returns the group of an owner or, where that is empty, the one that was taken and ends then; 0 if there is none.
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

// first returns the first group of a tree, if there is one.
func (s *slots) first(tree int) index { return s.outermost(tree, s.roots[tree], 0) }

// outermost returns the first group below i, or with side 1 the last.
func (s *slots) outermost(tree int, i index, side int) index {
	for i > 0 && s.at(i).below[tree][side] > 0 {
		i = s.at(i).below[tree][side]
	}
	return i
}

// nth returns the group that has the n-th slot in the order of their ends, or 0 if there are fewer.
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

// over returns how many slots have ended at a time.
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

// side returns on which side of j the group i is, or would be.
func (s *slots) side(tree int, i, j index) int {
	if s.less(tree, i, j) {
		return 0
	}
	return 1
}

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

func (s *slots) cut(tree int, i index) { s.roots[tree] = s.cutBelow(tree, s.roots[tree], i) }

// cutBelow takes i, which must be there, out of the tree below a root and returns the new root.
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

// update works out what a node says of all that is below it.
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

// balance updates i, one side of which may be higher than the other by two, and returns what takes its place.
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

// lift puts the child of i on a side in the place of i, which becomes its child, and returns it.
func (s *slots) lift(tree int, i index, side int) index {
	child := s.at(i).below[tree][side]
	s.at(i).below[tree][side] = s.at(child).below[tree][1-side]
	s.at(child).below[tree][1-side] = i
	s.update(tree, i)
	s.update(tree, child)
	return child
}
