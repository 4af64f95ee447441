// Package override implements operators' controls, which override the rules for a descriptor. They are in an immutable [Table]. Without
// controls there is no table, so a request costs one atomic load.
//
// This package is part of the core.
package override

import (
	"fmt"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// MaxNumbers is the maximum number of controls whose numbers have gauges.
const MaxNumbers = 1000

// Kind is the effect of a control.
type Kind uint8

// The kinds, in decreasing order of precedence.
const (
	Block Kind = iota // reject
	Allow             // admit without counting
	Limit             // replace the number of a limit

	kinds
)

// String returns the kind as spelled in commands.
func (k Kind) String() string { return [...]string{"block", "allow", "limit"}[k] }

// Kinds returns all kinds in decreasing order of precedence.
func Kinds() []Kind { return []Kind{Block, Allow, Limit} }

// Entry is a key and value of a control. Both are compared with those of requests byte by byte, without wildcards. An empty value matches
// only an empty value.
type Entry struct{ Key, Value string }

// Control is an operator's decision about a descriptor, with an end.
type Control struct {
	ID      string // random; a later control of the same kind for the same descriptor replaces this one and inherits the ID
	Kind    Kind
	Domain  string
	Entries []Entry // empty only with Below: then the control matches every descriptor of the domain
	Below   bool    // match all descriptors that begin with the entries; otherwise only the one that equals them

	To        descriptors.Override // the number to put in force, for a Limit
	LimitName string               // name of the rule's limit to change, for a Limit; empty means the first

	Since, Until time.Time
	By, Reason   string

	// Scoped reports, for a control to be put in force, that its caller's token is restricted to some domains.
	Scoped bool
}

// String returns the name of the control in answers and metrics, such as block:0123456789abcdef.
func (c *Control) String() string { return c.Kind.String() + ":" + c.ID }

// Number formats the number that c puts in force, such as 500/minute or 500/5xminute.
func (c *Control) Number() string {
	unit := strings.ToLower(c.To.Unit.String())
	if c.To.Multiplier > 1 {
		unit = fmt.Sprintf("%dx%s", c.To.Multiplier, unit)
	}
	return fmt.Sprintf("%d/%s", c.To.Number(), unit)
}

// Match returns the entries of c as entries of a request.
func (c *Control) Match() []descriptors.Entry {
	all := make([]descriptors.Entry, 0, len(c.Entries))
	for _, e := range c.Entries {
		all = append(all, descriptors.Entry{Key: []byte(e.Key), Value: []byte(e.Value)})
	}
	return all
}

// Text describes the descriptors that the control matches, such as shop user=bob, or shop user=bob and all below.
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
