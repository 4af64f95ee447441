// Package rulediff says in words what differs between two sets of rules, and how much care each change deserves.
//
// This package is optional: the core works without it.
package rulediff

import (
	"fmt"
	"strconv"
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
	if c.Kind != Changed {
		return c.Text
	}
	return c.Text + map[Counters]string{Reset: ", counts from 0", Partly: ", keeps some of its counters", Kept: ", keeps its counters"}[c.Counters]
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
	return map[Effect]string{Opens: "opens a limit", Resets: "counts from 0", Raises: "raises a limit"}[e]
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
	for _, k := range keyChanges(domainKeys(now), domainKeys(was)) {
		effect := Other
		if k == rulefile.KeyAllowLimitOverride+" false→true" {
			effect = Opens // requests bring their own limits
		}
		d.ofDomain(now, effect, "%s", k)
	}
	d.level(now.Root(), was.Root(), now.Name)
}

// domainKeys returns the keys of a domain.
func domainKeys(d *descriptors.Domain) []descriptors.KeyValue {
	return []descriptors.KeyValue{
		{Key: rulefile.KeyCharge, Value: map[bool]string{false: "each", true: "together"}[d.ChargeTogether]},
		{Key: rulefile.KeyAllowLimitOverride, Value: strconv.FormatBool(d.AllowOverride)},
		{Key: rulefile.KeyQuotaGroupBy, Value: "[" + strings.Join(d.QuotaGroupBy, ", ") + "]"},
	}
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
	if c := change(n, was); c.Text != "" {
		c.Path = path
		if n != nil {
			c.Place = d.now.Place(n)
		} else {
			c.Place = d.was.Place(was)
		}
		d.add(c)
	}
	d.level(children(n), children(was), path)
}

// children returns the level below a node, which may be nil.
func children(n *descriptors.Node) *descriptors.Level {
	if n == nil {
		return nil
	}
	return n.Children
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
	changes := keyChanges(flags(n), flags(was))
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

// flags returns the flags of a descriptor that do not need a limit.
func flags(n *descriptors.Node) []descriptors.KeyValue {
	return []descriptors.KeyValue{
		{Key: rulefile.KeyDetailedMetric, Value: strconv.FormatBool(n.DetailedMetric())},
		{Key: rulefile.KeyValueToMetric, Value: strconv.FormatBool(n.ValueToMetric())},
		{Key: rulefile.KeyShareThreshold, Value: strconv.FormatBool(n.ShareThreshold())},
	}
}
