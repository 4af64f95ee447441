// Package controls holds operators' temporary overrides of the rules: a control blocks a descriptor, allows it, or changes its
// limit until the control expires.
//
// A [Control] applies to one descriptor, or to all descriptors that begin with its entries. [Controls] has the controls of this
// process or, with a shared store, of all replicas. The limiter reads an immutable [Table], which each change replaces. Without
// controls there is no table, and a request costs one pointer load.
//
// This package is optional: the core works without it.
package controls

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Limits of controls.
const (
	Max        = 10_000 // active at a time
	Longest    = 30 * 24 * time.Hour
	Shortest   = time.Second
	MaxEntries = 256  // maximum of a request's descriptor
	MaxText    = 4096 // bytes of the domain and all keys and values
	MaxReason  = 500  // bytes
	MaxName    = 500  // bytes of the name of a limit
)

// Limits of callers whose tokens are restricted to some domains, which leave room for other callers.
const (
	MaxScoped   = Max / 2  // active controls of all such callers
	MaxOfDomain = Max / 10 // active controls of one domain
)

// newID returns a unique ID. It does not depend on the descriptor, because metrics and headers show IDs to clients, which must not
// learn the descriptor.
func newID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// InvalidError describes why a control is invalid, and valid values.
type InvalidError string

// Error implements [error].
func (e InvalidError) Error() string { return string(e) }

// validate returns nil if c can be set for this span, or an [InvalidError].
func validate(c *override.Control, span time.Duration) error {
	size := len(c.Domain)
	for _, e := range c.Entries {
		size += len(e.Key) + len(e.Value)
		if e.Key == "" {
			return InvalidError("an entry has no key: each entry needs a key, but may have an empty value")
		}
	}
	switch {
	case c.Domain == "":
		return InvalidError("the domain is empty: use the domain of the requests")
	case len(c.Entries) == 0 && !c.Below:
		return InvalidError("the descriptor has no entries: add at least one, or set below to match all descriptors of the domain")
	case len(c.Entries) > MaxEntries:
		return InvalidError(fmt.Sprintf("the descriptor has %d entries: it may have at most %d", len(c.Entries), MaxEntries))
	case size > MaxText:
		return InvalidError(fmt.Sprintf("the domain and the entries have %d bytes: they may have at most %d", size, MaxText))
	case len(c.Reason) > MaxReason:
		return InvalidError(fmt.Sprintf("the reason has %d bytes: it may have at most %d", len(c.Reason), MaxReason))
	case len(c.LimitName) > MaxName:
		return InvalidError(fmt.Sprintf("the name of the limit has %d bytes: it may have at most %d, and must be the name of a rule's limit", len(c.LimitName), MaxName))
	case span < Shortest || span > Longest:
		return InvalidError(fmt.Sprintf("%s is not a valid duration for a control: it must be from 1s to 30 days (720h)", span))
	case c.Kind == override.Limit && c.To.Unit.Length() == 0:
		return InvalidError("the new limit has no unit: it must be second, minute, hour, day, week, month or year")
	case c.To.Number() > descriptors.MaxRequestsPerUnit:
		return InvalidError(fmt.Sprintf("the new limit is %d: it may be at most %d", c.To.Number(), descriptors.MaxRequestsPerUnit))
	}
	return nil
}

func flat(entries []override.Entry) []string {
	all := make([]string, 0, 2*len(entries))
	for _, e := range entries {
		all = append(all, e.Key, e.Value)
	}
	return all
}
