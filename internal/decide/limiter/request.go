package limiter

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// The maximum numbers of descriptors in a request, and of entries in a descriptor.
const (
	MaxDescriptors = 1024
	MaxEntries     = 256
)

// Why there is no verdict.
var (
	ErrEmptyDomain        = errors.New("rate limit domain must not be empty")
	ErrNoDescriptors      = errors.New("rate limit descriptor list must not be empty")
	ErrNoRules            = errors.New("no rate limit configuration loaded")
	ErrTooManyDescriptors = fmt.Errorf("a request may have at most %d descriptors", MaxDescriptors)
	ErrTooManyEntries     = fmt.Errorf("a descriptor may have at most %d entries", MaxEntries)
	// ErrBackend is wrapped by every error that comes from the backend. If the reason is an error of the context, that is
	// wrapped too.
	ErrBackend = errors.New("asking the counter store")
	// ErrNoLimit is what Peek and Reset return for a descriptor to which no limit applies, so that it has no counter.
	ErrNoLimit = errors.New("no limit applies to this descriptor")
)

// Request is what has to be decided. Its bytes belong to the caller, which must not change them until Decide returns.
type Request struct {
	Domain      []byte
	Descriptors []Descriptor
	Hits        uint32    // hits_addend of the request; 0 means 1
	Late        bool      // there is no time for it: fallbacks decide it
	Read        time.Time // when its message had been read; zero if that is not known
}

// Descriptor is one descriptor of a request.
type Descriptor struct {
	Entries     []descriptors.Entry
	Hits        uint64 // valid if HasHits
	HasHits     bool   // 0 hits mean a check
	Negative    bool   // refund the hits
	HasOverride bool

	// Reservation is the id of the reservation to settle, empty or "none" if there is none, where HasReservation is set:
	// there was an entry with it, which Decide has taken out of Entries.
	Reservation    []byte
	HasReservation bool
	Override       descriptors.Override
}

// Text returns d in a form fit for people, key=value,key=value, truncated after about longest bytes. It is valid UTF-8.
// It contains data of end users.
func (d *Descriptor) Text(longest int) string {
	var b strings.Builder
	for i, e := range d.Entries {
		if i > 0 {
			b.WriteByte(',')
		}
		for _, part := range [][]byte{e.Key, []byte("="), e.Value} {
			if b.Len()+len(part) > longest {
				b.Write(part[:max(0, longest-b.Len())])
				return strings.ToValidUTF8(b.String(), "\uFFFD") + "…"
			}
			b.Write(part)
		}
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}

// hits returns how many hits descriptor d of r spends or refunds.
func (r *Request) hits(d *Descriptor) uint64 {
	if d.HasHits {
		return min(d.Hits, engine.MaxHits)
	}
	return uint64(max(1, r.Hits))
}

// validate returns why r cannot be decided by any rules, or nil.
func (r *Request) validate() error {
	switch {
	case len(r.Domain) == 0:
		return ErrEmptyDomain
	case len(r.Descriptors) == 0:
		return ErrNoDescriptors
	}
	return nil
}

// withinBounds returns an error if r is too large.
func (r *Request) withinBounds() error {
	if len(r.Descriptors) > MaxDescriptors {
		return ErrTooManyDescriptors
	}
	for i := range r.Descriptors {
		if len(r.Descriptors[i].Entries) > MaxEntries {
			return ErrTooManyEntries
		}
	}
	return nil
}
