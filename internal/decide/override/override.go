// Package override has what overrides the rules for a descriptor: controls, in a [Table] that never changes. Without controls there is
// no table, so a request costs one load of a pointer.
//
// This package is part of the core.
package override

import (
	"fmt"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// MaxNumbers is how many controls have gauges of their numbers.
const MaxNumbers = 1000

// Kind is what a control does.
type Kind uint8

// The kinds. Where several controls are about a descriptor, an earlier kind decides before a later one.
const (
	Block Kind = iota // reject
	Allow             // let pass, and spend nothing
	Limit             // put another number in force

	kinds
)

// String returns the kind as commands spell it.
func (k Kind) String() string { return [...]string{"block", "allow", "limit"}[k] }

// Kinds returns all kinds, those that decide first in front.
func Kinds() []Kind { return []Kind{Block, Allow, Limit} }

// Entry is one key and value of a control. Both are compared with those of requests byte by byte: no character in them
// stands for another, and an empty value is an empty value.
type Entry struct{ Key, Value string }

// Control is a decision of an operator.
type Control struct {
	ID      string // random; a later control of the same kind about the same descriptor takes its place and keeps it
	Kind    Kind
	Domain  string
	Entries []Entry // none only with Below: then it is about every descriptor of the domain
	Below   bool    // about all descriptors that begin with the entries, not only about the one that has no others

	To        descriptors.Override // of a Limit: the number in force
	LimitName string               // of a Limit: the name of the rule's limit whose number it replaces; empty means its first

	Since, Until time.Time
	By, Reason   string

	// Scoped says, of a control that is to be put in force, that its caller's token is for some domains only.
	Scoped bool
}

// String names the control, as answers and metrics do: block:0123456789abcdef.
func (c *Control) String() string { return c.Kind.String() + ":" + c.ID }

// Number returns the number that c puts in force, in words, such as 500/minute or 500/5xminute.
func (c *Control) Number() string {
	unit := strings.ToLower(c.To.Unit.String())
	if c.To.Multiplier > 1 {
		unit = fmt.Sprintf("%dx%s", c.To.Multiplier, unit)
	}
	return fmt.Sprintf("%d/%s", c.To.RequestsPerUnit, unit)
}

// Match returns the entries of c as those of a request.
func (c *Control) Match() []descriptors.Entry {
	all := make([]descriptors.Entry, 0, len(c.Entries))
	for _, e := range c.Entries {
		all = append(all, descriptors.Entry{Key: []byte(e.Key), Value: []byte(e.Value)})
	}
	return all
}

// Text returns what the control is about in words, such as shop user=bob, or shop user=bob and all below.
func (c *Control) Text() string {
	var b strings.Builder
	b.WriteString(c.Domain)
	for i, e := range c.Entries {
		if i == 0 {
			b.WriteByte(' ')
		} else {
			b.WriteByte(',')
		}
		b.WriteString(e.Key + "=" + e.Value)
	}
	if c.Below {
		b.WriteString(" and all below")
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}
