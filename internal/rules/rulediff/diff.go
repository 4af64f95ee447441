// Package rulediff describes the differences between two sets of rules, and the risk of each change.
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

// Change is a difference between two sets of rules. Its JSON field names are stable.
type Change struct {
	Domain   string     `json:"-"`
	Path     string     `json:"path"` // the domain, keys, and values; only the domain for a change of the domain itself
	Kind     ChangeKind `json:"kind"`
	Effect   Effect     `json:"effect"`
	Counters Counters   `json:"counters"`
	Text     string     `json:"text"`  // description without the path
	Place    string     `json:"place"` // file:line of the new or removed rule; may be empty
}

// String formats the change for the log of a reload.
func (c *Change) String() string {
	if c.Kind == Changed && c.Counters == Reset {
		return c.Path + ": " + c.Text + ", counts from 0"
	}
	return c.Path + ": " + c.Text
}

// InFull describes the change and its effect on counters.
func (c *Change) InFull() string {
	if c.Kind != Changed {
		return c.Text
	}
	return c.Text + map[Counters]string{Reset: ", counts from 0", Partly: ", keeps some of its counters", Kept: ", keeps its counters"}[c.Counters]
}

// ChangeKind is the kind of a change.
type ChangeKind string

// The kinds of changes.
const (
	Added     ChangeKind = "added"
	Removed   ChangeKind = "removed"
	Changed   ChangeKind = "changed"
	Reached   ChangeKind = "reached"   // a rule applies to other descriptors, and may itself be unchanged
	Reordered ChangeKind = "reordered" // of wildcards
	OfDomain  ChangeKind = "domain"
)

// Effect is the risk of a change.
type Effect string

// The effects, most dangerous first.
const (
	Opens  Effect = "opens"  // limited descriptors become, or may become, unlimited
	Resets Effect = "resets" // counters start again, which admits more once
	Raises Effect = "raises"
	Other  Effect = "other"
)

// Effects returns all effects, most dangerous first.
func Effects() []Effect { return []Effect{Opens, Resets, Raises, Other} }

// Text describes the effects Opens, Resets, and Raises.
func (e Effect) Text() string {
	return map[Effect]string{Opens: "opens a limit", Resets: "counts from 0", Raises: "raises a limit"}[e]
}

// Counters is the effect of a change on a rule's counters.
type Counters string

// Effects on counters.
const (
	None   Counters = "" // there were no counters, or there are none now
	Kept   Counters = "kept"
	Partly Counters = "partly" // some limits' counters start again
	Reset  Counters = "reset"
)

// Between returns the changes from old, which may be nil, to now, removed domains last. It is empty if the sets are equivalent.
func Between(old, now *descriptors.Set) (all []Change) {
	eachChange(old, now, func(c Change) { all = append(all, c) })
	return all
}

// eachChange calls take for each change, in the order of the files.
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

// differ determines the changes between two sets.
type differ struct {
	now, was *descriptors.Set
	name     string // of the domain
	take     func(Change)
	spent    int // number of compared pairs of wildcards
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
			effect = Opens // requests carry their own limits
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

// level compares two levels with the same path; either may be nil.
func (d *differ) level(now, was *descriptors.Level, path string) {
	var order []*descriptors.Node // remaining nodes of was, in their new order
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

// reordered reports whether wildcards in nodes have another order than in their level.
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

// node compares a node with its previous version; either may be nil.
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

// change describes the change of a node itself, with an empty Text for none. It ignores added and removed nodes that
// only have children.
func change(n, was *descriptors.Node) Change {
	switch {
	case was == nil && n.Rule != nil:
		return Change{Kind: Added, Effect: Other, Text: "added, " + describe(n.Rule)}
	case was == nil && n.Children == nil:
		return Change{Kind: Added, Effect: Other, Text: "added, not limited"}
	case n == nil && was.Rule != nil:
		c := Change{Kind: Removed, Effect: Other, Text: "removed (" + describe(was.Rule) + ")"}
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
		changes = append([]string{"not limited→" + describe(n.Rule)}, changes...)
	case was.Rule != nil:
		changes = append([]string{describe(was.Rule) + "→not limited"}, changes...)
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

// flags returns the flags of a descriptor that apply without a limit.
func flags(n *descriptors.Node) []descriptors.KeyValue {
	return []descriptors.KeyValue{
		{Key: rulefile.KeyDetailedMetric, Value: strconv.FormatBool(n.DetailedMetric())},
		{Key: rulefile.KeyValueToMetric, Value: strconv.FormatBool(n.ValueToMetric())},
		{Key: rulefile.KeyShareThreshold, Value: strconv.FormatBool(n.ShareThreshold())},
	}
}
