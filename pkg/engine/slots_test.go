package engine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// check returns the number of nodes below i in one of the trees, and the first violation of its balance or order.
func (s *slots) check(tree int, i index) (nodes int, wrong string) {
	if i == 0 {
		return 0, ""
	}
	g := s.at(i)
	left, right := g.below[tree][0], g.below[tree][1]
	for side, child := range g.below[tree] {
		n, wrong := s.check(tree, child)
		if wrong != "" {
			return 0, wrong
		}
		nodes += n
		if child > 0 && s.side(tree, child, i) != side {
			return 0, fmt.Sprintf("tree %d: %d is on the wrong side of %d", tree, child, i)
		}
	}
	l, r := s.height(tree, left), s.height(tree, right)
	if max(l, r)-min(l, r) > 1 || g.height[tree] != 1+max(l, r) {
		return 0, fmt.Sprintf("tree %d: %d is %d high over %d and %d", tree, i, g.height[tree], l, r)
	}
	if sum := s.sumOf(left) + s.sumOf(right) + uint64(g.n); tree == byEnd && uint64(g.sum) != sum {
		return 0, fmt.Sprintf("%d has the sum %d, want %d", i, g.sum, sum)
	}
	return nodes + 1, ""
}

// TestF28_ManyHolders checks that a take with 10,000 holders visits few of them, regardless of their names and the order of calls.
func TestF28_ManyHolders(t *testing.T) {
	const most = 10_000
	limits := Limits{{Algorithm: Concurrency, Hits: most, Window: 3600e6}}
	random := rand.New(rand.NewPCG(1, 2))
	for name, owner := range map[string]func(i int) string{
		"rising":  func(i int) string { return fmt.Sprintf("%06d", i) },
		"falling": func(i int) string { return fmt.Sprintf("%06d", most-i) },
		"random":  func(int) string { return fmt.Sprintf("%06d", random.IntN(most)) },
		"none":    func(int) string { return "" },
		"mixed":   func(i int) string { return []string{"", fmt.Sprintf("%06d", random.IntN(most))}[i%2] },
	} {
		t.Run(name, func(t *testing.T) {
			var s State
			now := Micros(base)
			step := func(i int) {
				now += Micros(random.IntN(3))
				take := Take{Cost: 1, Count: 1, Owner: owner(i)}
				if i >= most && i%2 == 0 {
					limits.Refund([]*State{&s}, now, take)
				} else {
					limits.Take([]*State{&s}, now, take)
				}
				if i%500 > 0 || s.more == nil {
					return
				}
				q := &s.more.slots
				for tree, root := range q.roots {
					n, wrong := q.check(tree, root)
					if deepest := 1.45 * math.Log2(float64(n)+2); wrong != "" || n != int(q.count) || float64(q.height(tree, root)) > deepest {
						t.Fatalf("step %d: %d of %d groups, %d high: %s", i, n, q.count, q.height(tree, root), wrong)
					}
				}
				if q.all() != s.n {
					t.Fatalf("step %d: %d slots in the trees, %d in all", i, q.all(), s.n)
				}
			}
			for i := range 3 * most {
				step(i)
			}
			now += 3600e6 - 5000 // half of them end
			for i := range most {
				step(i)
			}
			now -= 1e6 // back
			for i := range most {
				step(i)
			}
		})
	}
}
