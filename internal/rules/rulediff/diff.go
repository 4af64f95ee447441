// Package rulediff says in words what differs between two sets of rules, and how much care each change deserves.
//
// This package is optional: the core works without it.
package rulediff

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Change is one difference between two sets of rules. The names of its fields in JSON do not change.
type Change struct {
	Domain   string     `json:"-"`
	Path     string     `json:"path"` // the domain, keys and values; the domain alone if the change is of the domain as a whole
	Kind     ChangeKind `json:"kind"`
	Effect   Effect     `json:"effect"`
	Counters Counters   `json:"counters"`
	Text     string     `json:"text"`  // what changed, in words, without the path
	Place    string     `json:"place"` // file:line of the new rule, or of the one that was removed; empty if there is none
}

// String returns the change as the log of a reload has it.
func (c *Change) String() string {
	if c.Kind == Changed && c.Counters == Reset {
		return c.Path + ": " + c.Text + ", counts from 0"
	}
	return c.Path + ": " + c.Text
}

// InFull returns what changed in words, with what becomes of the counters.
func (c *Change) InFull() string {
	switch {
	case c.Kind != Changed || c.Counters == None:
		return c.Text
	case c.Counters == Reset:
		return c.Text + ", counts from 0"
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
	Opens  Effect = "opens"  // something that was limited is not, or may not be
	Resets Effect = "resets" // counters start again, so that for once more is admitted
	Raises Effect = "raises"
	Other  Effect = "other"
)

// Effects lists the effects, the most dangerous first.
func Effects() []Effect { return []Effect{Opens, Resets, Raises, Other} }

// Text says what an effect is, in words; other effects have none.
func (e Effect) Text() string {
	switch e {
	case Opens:
		return "opens a limit"
	case Resets:
		return "counts from 0"
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
	Partly Counters = "partly" // of several limits some start again
	Reset  Counters = "reset"
)

// Between returns what changed from old, which may be nil, to now: removed domains last. It is empty if both sets decide alike.
func Between(old, now *descriptors.Set) (all []Change) {
	eachChange(old, now, func(c Change) { all = append(all, c) })
	return all
}

// eachChange gives each of the changes to take, in the order of the files.
func eachChange(old, now *descriptors.Set, take func(Change)) {
	if old == nil {
		old = &descriptors.Set{}
	}
	d := &differ{now: now, was: old, take: take}
	for domain := range now.Domains() {
		d.name = domain.Name
		d.domain(domain, old.Domain([]byte(domain.Name)))
	}
	for domain := range old.Domains() {
		if d.name = domain.Name; now.Domain([]byte(domain.Name)) == nil {
			d.domain(&descriptors.Domain{
				Name: domain.Name, AllowOverride: domain.AllowOverride, ChargeTogether: domain.ChargeTogether, QuotaGroupBy: domain.QuotaGroupBy,
			}, domain)
			d.ofDomain(domain, Other, "domain removed")
		}
	}
}

// differ finds the changes between two sets.
type differ struct {
	now, was *descriptors.Set
	name     string // of the domain
	take     func(Change)
	spent    int // comparisons of wildcards
}

func (d *differ) add(c Change) {
	c.Domain = d.name
	d.take(c)
}

func (d *differ) ofDomain(domain *descriptors.Domain, effect Effect, format string, args ...any) {
	d.add(Change{Path: domain.Name, Kind: OfDomain, Effect: effect, Text: fmt.Sprintf(format, args...)})
}

func (d *differ) domain(now, was *descriptors.Domain) {
	if was == nil {
		d.ofDomain(now, Other, "domain added")
		was = &descriptors.Domain{Name: now.Name, AllowOverride: true}
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
	d.level(now.Root(), was.Root(), now.Name)
}

func groupText(keys []string) string { return "[" + strings.Join(keys, ", ") + "]" }

func chargeText(together bool) string {
	if together {
		return "together"
	}
	return "each"
}

// level compares two levels at the same path; either may be nil.
func (d *differ) level(now, was *descriptors.Level, path string) {
	var order []*descriptors.Node // nodes of was that are still there, in the new order
	for _, n := range now.Nodes() {
		before := was.Same(n)
		if before != nil {
			order = append(order, before)
		}
		d.node(n, before, path+"."+n.Label())
	}
	for _, n := range was.Nodes() {
		if now.Same(n) == nil {
			d.node(nil, n, path+"."+n.Label())
		}
	}
	d.reach(now, was, path)
	if reordered(order) {
		d.add(Change{Path: path, Kind: Reordered, Effect: Other, Text: "wildcards are tried in a different order"})
	}
}

// reordered reports whether the wildcards among nodes are in another order than on their level.
func reordered(nodes []*descriptors.Node) bool {
	last := int32(-1)
	for _, n := range nodes {
		if !n.IsWildcard() {
			continue
		}
		if n.Order < last {
			return true
		}
		last = n.Order
	}
	return false
}

// node compares a node with what it was before; one of the two may be nil.
func (d *differ) node(n, was *descriptors.Node, path string) {
	var children, wereChildren *descriptors.Level
	if n != nil {
		children = n.Children
	}
	if was != nil {
		wereChildren = was.Children
	}
	if c := change(n, was); c.Text != "" {
		c.Path = path
		if n != nil {
			c.Place = d.now.Place(n)
		} else {
			c.Place = d.was.Place(was)
		}
		d.add(c)
	}
	d.level(children, wereChildren, path)
}

// change describes what changed at a node itself; there is no text if nothing did. Adding or removing a node that only
// holds others is not mentioned.
func change(n, was *descriptors.Node) Change {
	switch {
	case was == nil && n.Rule != nil:
		return Change{Kind: Added, Effect: Other, Text: "added, " + whole(n.Rule)}
	case was == nil && n.Children == nil:
		return Change{Kind: Added, Effect: Other, Text: "added, not limited"}
	case n == nil && was.Rule != nil:
		c := Change{Kind: Removed, Effect: Other, Text: "removed (" + whole(was.Rule) + ")"}
		if canReject(was.Rule) {
			c.Effect = Opens
		}
		if losesRLQS(nil, was.Rule) {
			c.Text += ", " + unassigned
		}
		return c
	case n == nil && was.Children == nil:
		return Change{Kind: Removed, Effect: Other, Text: "removed (not limited)"}
	case was == nil || n == nil:
		return Change{}
	}
	c := Change{Kind: Changed, Effect: effect(n.Rule, was.Rule)}
	changes := flagChanges(n, was)
	switch {
	case n.Rule != nil && was.Rule != nil:
		changes = append(wholeChanges(n.Rule, was.Rule), changes...)
		c.Counters = countersSince(n.Rule, was.Rule)
		if len(changes) == 0 && !n.Rule.SameNames(was.Rule) {
			changes = append(changes, "its counters have a different name, because a descriptor above it changed")
		}
	case n.Rule != nil:
		changes = append([]string{"not limited→" + whole(n.Rule)}, changes...)
	case was.Rule != nil:
		changes = append([]string{whole(was.Rule) + "→not limited"}, changes...)
		if losesRLQS(nil, was.Rule) {
			changes = append(changes, unassigned)
		}
	}
	if c.Effect != Opens && (c.Counters == Reset || c.Counters == Partly) {
		c.Effect = Resets
	}
	c.Text = strings.Join(changes, ", ")
	return c
}

func flagChanges(now, was *descriptors.Node) (out []string) {
	for _, f := range []struct {
		k        string
		now, was bool
	}{
		{rulefile.KeyDetailedMetric, now.DetailedMetric(), was.DetailedMetric()},
		{rulefile.KeyValueToMetric, now.ValueToMetric(), was.ValueToMetric()},
		{rulefile.KeyShareThreshold, now.ShareThreshold(), was.ShareThreshold()},
	} {
		if f.now != f.was {
			out = append(out, fmt.Sprintf("%s %t→%t", f.k, f.was, f.now))
		}
	}
	return out
}
