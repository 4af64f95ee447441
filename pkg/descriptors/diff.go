package descriptors

import (
	"fmt"
	"slices"
	"strings"
)

// Diff describes what changed from old, which may be nil, to s: one line per change, removed domains last. It is empty
// if both sets decide alike.
func (s *Set) Diff(old *Set) []string {
	if old == nil {
		old = &Set{}
	}
	var lines []string
	for _, d := range s.domains {
		lines = append(lines, d.diff(old.byName[d.Name])...)
	}
	for _, d := range old.domains {
		if s.byName[d.Name] == nil {
			lines = append(lines, (&Domain{Name: d.Name, AllowOverride: d.AllowOverride, ChargeTogether: d.ChargeTogether, QuotaGroupBy: d.QuotaGroupBy}).diff(d)...)
			lines = append(lines, d.Name+": domain removed")
		}
	}
	return lines
}

func (d *Domain) diff(old *Domain) (lines []string) {
	if old == nil {
		lines = append(lines, d.Name+": domain added")
		old = &Domain{Name: d.Name, AllowOverride: true}
	}
	if d.ChargeTogether != old.ChargeTogether {
		lines = append(lines, fmt.Sprintf("%s: charge %s→%s", d.Name, chargeText(old.ChargeTogether), chargeText(d.ChargeTogether)))
	}
	if d.AllowOverride != old.AllowOverride {
		lines = append(lines, fmt.Sprintf("%s: allow_limit_override %t→%t", d.Name, old.AllowOverride, d.AllowOverride))
	}
	if !slices.Equal(d.QuotaGroupBy, old.QuotaGroupBy) {
		lines = append(lines, fmt.Sprintf("%s: quota_group_by %s→%s", d.Name, groupText(old.QuotaGroupBy), groupText(d.QuotaGroupBy)))
	}
	return append(lines, d.root.diff(&old.root, d.Name)...)
}

func groupText(keys []string) string { return "[" + strings.Join(keys, ", ") + "]" }

func chargeText(together bool) string {
	if together {
		return "together"
	}
	return "each"
}

// diff compares two levels at the same path; either may be nil.
func (l *level) diff(old *level, path string) (lines []string) {
	var order []*node // nodes of old that are still there, in the new order
	for _, n := range l.all() {
		was := old.same(n)
		if was != nil {
			order = append(order, was)
		}
		lines = append(lines, n.diff(was, path+"."+n.label())...)
	}
	for _, n := range old.all() {
		if l.same(n) == nil {
			lines = append(lines, (*node)(nil).diff(n, path+"."+n.label())...)
		}
	}
	if reordered(order) {
		lines = append(lines, path+": wildcards are tried in a different order")
	}
	return lines
}

func (l *level) all() []*node {
	if l == nil {
		return nil
	}
	return l.nodes
}

// same returns the node of l with the key and value of n, or nil.
func (l *level) same(n *node) *node {
	if l == nil {
		return nil
	}
	g := l.group([]byte(n.key))
	switch {
	case g == nil:
		return nil
	case n.value == "":
		return g.bare
	}
	return g.exactly([]byte(n.value))
}

// reordered reports whether the wildcards among nodes are in another order than on their level.
func reordered(nodes []*node) bool {
	last := int32(-1)
	for _, n := range nodes {
		if !n.isWildcard() {
			continue
		}
		if n.order < last {
			return true
		}
		last = n.order
	}
	return false
}

// diff compares a node with what it was before; one of the two may be nil.
func (n *node) diff(was *node, path string) (lines []string) {
	var children, wereChildren *level
	if n != nil {
		children = n.children
	}
	if was != nil {
		wereChildren = was.children
	}
	if line := change(n, was); line != "" {
		lines = append(lines, path+": "+line)
	}
	return append(lines, children.diff(wereChildren, path)...)
}

// change describes what changed at a node itself, or returns "". Adding or removing a node that only holds others is
// not mentioned.
func change(n, was *node) string {
	switch {
	case was == nil && n.rule != nil:
		return "added, " + n.rule.whole()
	case was == nil && n.children == nil:
		return "added, not limited"
	case n == nil && was.rule != nil:
		return "removed (" + was.rule.whole() + ")"
	case n == nil && was.children == nil:
		return "removed (not limited)"
	case was == nil || n == nil:
		return ""
	}
	changes := flagChanges(n.flags, was.flags)
	switch {
	case n.rule != nil && was.rule != nil:
		changes = append(n.rule.wholeChanges(was.rule), changes...)
	case n.rule != nil:
		changes = append([]string{"not limited→" + n.rule.whole()}, changes...)
	case was.rule != nil:
		changes = append([]string{was.rule.whole() + "→not limited"}, changes...)
	}
	return strings.Join(changes, ", ")
}

func flagChanges(now, was nodeFlags) (out []string) {
	for _, f := range []struct {
		flag nodeFlags
		k    string
	}{{detailedMetric, kwDetailedMetric}, {valueToMetric, kwValueToMetric}, {shareThreshold, kwShareThreshold}} {
		if (now^was)&f.flag != 0 {
			out = append(out, fmt.Sprintf("%s %t→%t", f.k, was&f.flag != 0, now&f.flag != 0))
		}
	}
	return out
}
