package limiter

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Maximum sizes: descriptors in a request, and entries in a descriptor.
const (
	MaxDescriptors = 1024
	MaxEntries     = 256
)

// Errors of requests without a verdict, and of operators' calls.
var (
	ErrEmptyDomain        = errors.New("rate limit domain must not be empty")
	ErrNoDescriptors      = errors.New("rate limit descriptor list must not be empty")
	ErrNoRules            = errors.New("no rate limit configuration loaded")
	ErrTooManyDescriptors = fmt.Errorf("a request may have at most %d descriptors", MaxDescriptors)
	ErrTooManyEntries     = fmt.Errorf("a descriptor may have at most %d entries", MaxEntries)
	// ErrBackend is wrapped by every error of the backend. If a context error is the cause, it is wrapped too.
	ErrBackend = errors.New("asking the counter store")
	// ErrNoLimit is returned by Peek, Reset and Grant for a descriptor without a limit, which therefore has no counter.
	ErrNoLimit = errors.New("no limit applies to this descriptor")
)

// Request is a request to decide. The caller owns its bytes and must not change them until Decide returns.
type Request struct {
	Domain      []byte
	Descriptors []Descriptor
	Hits        uint32    // hits_addend of the request; 0 means 1
	OutOfTime   bool      // no time is left to ask the backend: fallbacks decide
	Read        time.Time // time when its message had been read; zero if unknown
}

// Descriptor is one descriptor of a request.
type Descriptor struct {
	Entries     []descriptors.Entry
	Hits        uint64 // valid only if HasHits
	HasHits     bool   // with Hits 0, the descriptor only checks
	Negative    bool   // refund the hits
	HasOverride bool

	// Reservation is the ID of the reservation to settle; empty or "none" means no reservation. For a rule with reserve by an entry, it is
	// the value of that entry. Decide sets both fields when it moves the entry out of Entries.
	Reservation    []byte
	HasReservation bool
	Opens          bool // the reservation is not to be settled: the request has no cost yet
	Override       descriptors.Override
}

// Text formats d as key=value,key=value for people, truncated after about longest bytes. The result is valid UTF-8 and contains data of
// end users.
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

// hits returns the number of hits that descriptor d of r consumes or refunds.
func (r *Request) hits(d *Descriptor) uint64 {
	if d.HasHits {
		return min(d.Hits, engine.MaxHits)
	}
	return uint64(max(1, r.Hits))
}

// hitless reports whether descriptor d of r has no hits.
func (r *Request) hitless(d *Descriptor) bool {
	return d.HasHits && d.Hits == 0 || !d.HasHits && r.Hits == 0
}

// validate returns an error if no rules could decide r.
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
