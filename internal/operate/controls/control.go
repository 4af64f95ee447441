// Package controls holds the decisions of operators that stand above the rules until they expire: to block the requests of a
// descriptor, to let them pass, or to put another number in force.
//
// A [Control] is for one descriptor, or for all that begin with its entries. [Controls] has those of this process and, where
// replicas share a store, of all of them. Requests are decided by a [Table], which never changes: each change builds a new one.
// Without controls there is no table, so that a request costs one load of a pointer.
//
// This package is optional: the core works without it.
package controls

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Bounds of controls.
const (
	Max        = 10_000 // in force at a time
	Longest    = 30 * 24 * time.Hour
	Shortest   = time.Second
	MaxEntries = 256  // as many as a descriptor of a request may have
	MaxText    = 4096 // bytes of the domain and all keys and values
	MaxReason  = 500  // bytes
	MaxName    = 500  // bytes of the name of a limit
	MaxNumbers = 1000 // controls whose numbers have gauges
)

// Bounds of what callers may add whose tokens are for some domains only, so that there is room for others in any case.
const (
	MaxScoped   = Max / 2  // controls in force at a time, from all callers
	MaxOfDomain = Max / 10 // the same, of one domain
)

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

// newID returns an ID that no other control has. It says nothing about the descriptor, since metrics and headers show IDs to those
// who must not know that.
func newID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // which never fails
	return hex.EncodeToString(b[:])
}

func flat(entries []Entry) []string {
	all := make([]string, 0, 2*len(entries))
	for _, e := range entries {
		all = append(all, e.Key, e.Value)
	}
	return all
}

// Match returns the entries of c as those of a request.
func (c *Control) Match() []descriptors.Entry {
	all := make([]descriptors.Entry, 0, len(c.Entries))
	for _, e := range c.Entries {
		all = append(all, descriptors.Entry{Key: []byte(e.Key), Value: []byte(e.Value)})
	}
	return all
}

// InvalidError says why a control is invalid, and which would be valid.
type InvalidError string

// Error implements error.
func (e InvalidError) Error() string { return string(e) }

// validate returns nil if c can be put in force for a time, or an [InvalidError].
func (c *Control) validate(span time.Duration) error {
	size := len(c.Domain)
	for _, e := range c.Entries {
		size += len(e.Key) + len(e.Value)
		if e.Key == "" {
			return InvalidError("an entry has no key: each one needs a key, and may have an empty value")
		}
	}
	switch {
	case c.Domain == "":
		return InvalidError("the domain is empty: it must be that of the requests")
	case len(c.Entries) == 0 && !c.Below:
		return InvalidError("the descriptor has no entries: give at least one, or set below, for all descriptors of the domain")
	case len(c.Entries) > MaxEntries:
		return InvalidError(fmt.Sprintf("the descriptor has %d entries: it may have at most %d", len(c.Entries), MaxEntries))
	case size > MaxText:
		return InvalidError(fmt.Sprintf("the domain and the entries have %d bytes: they may have at most %d", size, MaxText))
	case len(c.Reason) > MaxReason:
		return InvalidError(fmt.Sprintf("the reason has %d bytes: it may have at most %d", len(c.Reason), MaxReason))
	case len(c.LimitName) > MaxName:
		return InvalidError(fmt.Sprintf("the name of the limit has %d bytes: it may have at most %d, and must be one that a rule has", len(c.LimitName), MaxName))
	case span < Shortest || span > Longest:
		return InvalidError(fmt.Sprintf("%s is not a valid time for a control: it must be from 1s to 30 days (720h)", span))
	case c.Kind == Limit && c.To.Unit.Length() == 0:
		return InvalidError("the new limit has no unit: it must be second, minute, hour, day, week, month or year")
	}
	return nil
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
