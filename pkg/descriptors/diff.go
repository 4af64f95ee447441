package descriptors

import (
	"fmt"
	"slices"
	"strings"
)

// Change is one difference between two sets of rules.
type Change struct {
	Domain   string
	Path     string // the domain, keys and values; the domain alone if the change is of the domain as a whole
	Kind     ChangeKind
	Effect   Effect
	Counters Counters
	Text     string // what changed, in words, without the path
	Place    string // file:line of the new rule, or of the one that was removed; empty if there is none
}

// String returns the change as the log of a reload has it.
func (c *Change) String() string {
	if c.Kind == Changed && c.Counters == Anew {
		return c.Path + ": " + c.Text + ", counts anew"
	}
	return c.Path + ": " + c.Text
}

// InFull returns what changed in words, with what becomes of the counters.
func (c *Change) InFull() string {
	switch {
	case c.Kind != Changed || c.Counters == None:
		return c.Text
	case c.Counters == Anew:
		return c.Text + ", counts anew"
	case c.Counters == Partly:
		return c.Text + ", keeps some of its counters"
	}
	return c.Text + ", keeps its counters"
}

// ChangeKind says what was changed.
type ChangeKind string

// The kinds of changes.
const (
	Added     ChangeKind = "added"
	Removed   ChangeKind = "removed"
	Changed   ChangeKind = "changed"
	Reached   ChangeKind = "reached"   // other descriptors reach a rule, which itself may be as it was
	Reordered ChangeKind = "reordered" // wildcards
	OfDomain  ChangeKind = "domain"
)

// Effect says how much care a change deserves.
type Effect string

// The effects, the most dangerous first.
const (
	Opens  Effect = "opens" // something that was limited is not, or may not be
	Anews  Effect = "anew"  // counters begin anew, so that for once more is admitted
	Raises Effect = "raises"
	Other  Effect = "other"
)

// Effects lists the effects, the most dangerous first.
func Effects() []Effect { return []Effect{Opens, Anews, Raises, Other} }

// Text says what an effect is, in words; other effects have none.
func (e Effect) Text() string {
	switch e {
	case Opens:
		return "opens a limit"
	case Anews:
		return "counts anew"
	case Raises:
		return "raises a limit"
	case Other:
	}
	return ""
}

// Counters says what becomes of the counters of a rule.
type Counters string

// What may become of counters.
const (
	None   Counters = "" // there were none, or there are none any more
	Kept   Counters = "kept"
	Partly Counters = "partly" // of several limits some begin anew
	Anew   Counters = "anew"
)

// Diff describes what changed from old, which may be nil, to s: one line per change, removed domains last. It is empty
// if both sets decide alike.
func (s *Set) Diff(old *Set) (lines []string) {
	for _, c := range s.Changes(old) {
		lines = append(lines, c.String())
	}
	return lines
}

// Changes is Diff with all that is known of each change.
func (s *Set) Changes(old *Set) (all []Change) {
	s.eachChange(old, func(c Change) { all = append(all, c) })
	return all
}

// eachChange gives each of the changes to take, in the order of the files.
func (s *Set) eachChange(old *Set, take func(Change)) {
	if old == nil {
		old = &Set{}
	}
	d := &differ{now: s, was: old, take: take}
	for _, domain := range s.domains {
		d.name = domain.Name
		d.domain(domain, old.byName[domain.Name])
	}
	for _, domain := range old.domains {
		if d.name = domain.Name; s.byName[domain.Name] == nil {
			d.domain(&Domain{Name: domain.Name, AllowOverride: domain.AllowOverride, ChargeTogether: domain.ChargeTogether, QuotaGroupBy: domain.QuotaGroupBy}, domain)
			d.ofDomain(domain, Other, "domain removed")
		}
	}
}

// differ finds the changes between two sets.
type differ struct {
	now, was *Set
	name     string // of the domain
	take     func(Change)
	spent    int // comparisons of wildcards
}

func (d *differ) add(c Change) {
	c.Domain = d.name
	d.take(c)
}

func (d *differ) ofDomain(domain *Domain, effect Effect, format string, args ...any) {
	d.add(Change{Path: domain.Name, Kind: OfDomain, Effect: effect, Text: fmt.Sprintf(format, args...)})
}

func (d *differ) domain(now, was *Domain) {
	if was == nil {
		d.ofDomain(now, Other, "domain added")
		was = &Domain{Name: now.Name, AllowOverride: true}
	}
	if now.ChargeTogether != was.ChargeTogether {
		d.ofDomain(now, Other, "charge %s→%s", chargeText(was.ChargeTogether), chargeText(now.ChargeTogether))
	}
	if now.AllowOverride != was.AllowOverride {
		effect := Other
		if now.AllowOverride {
			effect = Opens // requests bring their own limits
		}
		d.ofDomain(now, effect, "allow_limit_override %t→%t", was.AllowOverride, now.AllowOverride)
	}
	if !slices.Equal(now.QuotaGroupBy, was.QuotaGroupBy) {
		d.ofDomain(now, Other, "quota_group_by %s→%s", groupText(was.QuotaGroupBy), groupText(now.QuotaGroupBy))
	}
	d.level(&now.root, &was.root, now.Name)
}

func groupText(keys []string) string { return "[" + strings.Join(keys, ", ") + "]" }

func chargeText(together bool) string {
	if together {
		return "together"
	}
	return "each"
}

// level compares two levels at the same path; either may be nil.
func (d *differ) level(now, was *level, path string) {
	var order []*node // nodes of was that are still there, in the new order
	for _, n := range now.all() {
		before := was.same(n)
		if before != nil {
			order = append(order, before)
		}
		d.node(n, before, path+"."+n.label())
	}
	for _, n := range was.all() {
		if now.same(n) == nil {
			d.node(nil, n, path+"."+n.label())
		}
	}
	d.reach(now, was, path)
	if reordered(order) {
		d.add(Change{Path: path, Kind: Reordered, Effect: Other, Text: "wildcards are tried in a different order"})
	}
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

// node compares a node with what it was before; one of the two may be nil.
func (d *differ) node(n, was *node, path string) {
	var children, wereChildren *level
	if n != nil {
		children = n.children
	}
	if was != nil {
		wereChildren = was.children
	}
	if c := change(n, was); c.Text != "" {
		c.Path = path
		if n != nil {
			c.Place = n.at.in(d.now.files[n.file])
		} else {
			c.Place = was.at.in(d.was.files[was.file])
		}
		d.add(c)
	}
	d.level(children, wereChildren, path)
}

// change describes what changed at a node itself; there is no text if nothing did. Adding or removing a node that only
// holds others is not mentioned.
func change(n, was *node) Change {
	switch {
	case was == nil && n.rule != nil:
		return Change{Kind: Added, Effect: Other, Text: "added, " + n.rule.whole()}
	case was == nil && n.children == nil:
		return Change{Kind: Added, Effect: Other, Text: "added, not limited"}
	case n == nil && was.rule != nil:
		c := Change{Kind: Removed, Effect: Other, Text: "removed (" + was.rule.whole() + ")"}
		if was.rule.refuses() {
			c.Effect = Opens
		}
		return c
	case n == nil && was.children == nil:
		return Change{Kind: Removed, Effect: Other, Text: "removed (not limited)"}
	case was == nil || n == nil:
		return Change{}
	}
	c := Change{Kind: Changed, Effect: n.rule.effect(was.rule)}
	changes := flagChanges(n.flags, was.flags)
	switch {
	case n.rule != nil && was.rule != nil:
		changes = append(n.rule.wholeChanges(was.rule), changes...)
		c.Counters = n.rule.countersSince(was.rule)
		if len(changes) == 0 && !n.rule.sameName(was.rule) {
			changes = append(changes, "another name for its counters, because of what changed above it")
		}
	case n.rule != nil:
		changes = append([]string{"not limited→" + n.rule.whole()}, changes...)
	case was.rule != nil:
		changes = append([]string{was.rule.whole() + "→not limited"}, changes...)
	}
	if c.Effect != Opens && (c.Counters == Anew || c.Counters == Partly) {
		c.Effect = Anews
	}
	c.Text = strings.Join(changes, ", ")
	return c
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
