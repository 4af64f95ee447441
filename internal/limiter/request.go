package limiter

import (
	"errors"
	"strings"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Most descriptors of a request, and most entries of a descriptor.
const (
	MaxDescriptors = 128
	MaxEntries     = 64
)

// What is wrong with a request, or with the server, so that there is no verdict.
var (
	ErrEmptyDomain        = errors.New("rate limit domain must not be empty")
	ErrNoDescriptors      = errors.New("rate limit descriptor list must not be empty")
	ErrNoRules            = errors.New("no rate limit configuration loaded")
	ErrTooManyDescriptors = errors.New("a request has at most 128 descriptors")
	ErrTooManyEntries     = errors.New("a descriptor has at most 64 entries")
	// ErrBackend is in every error that comes from the store. An error of the context, where that is the reason, is too.
	ErrBackend = errors.New("asking the store of the counters")
	// ErrNoLimit is what Peek and Reset return for a descriptor that no limit applies to, so that nothing counts it.
	ErrNoLimit = errors.New("no limit applies to this descriptor")

	errNotAllowed = errors.New("the domain has allow_limit_override: false")
)

// Request is a question. Its bytes belong to the caller, who must leave them alone until Decide returns.
type Request struct {
	Domain      []byte
	Descriptors []Descriptor
	Hits        uint32 // hits_addend of the request; 0 stands for 1
}

// Descriptor is one descriptor of a request.
type Descriptor struct {
	Entries     []descriptors.Entry
	Hits        uint64 // valid where HasHits
	HasHits     bool   // 0 hits are a look
	Negative    bool   // give the hits back
	HasOverride bool
	Override    descriptors.Override
}

// Text is d for people, key=value,key=value, cut short after about longest bytes. It is valid UTF-8. What it holds is data of
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

// hits is what descriptor d of r spends or gives back.
func (r *Request) hits(d *Descriptor) uint64 {
	if d.HasHits {
		return min(d.Hits, engine.MaxHits)
	}
	return uint64(max(1, r.Hits))
}

// validate says why r cannot be decided by any rules.
func (r *Request) validate() error {
	switch {
	case len(r.Domain) == 0:
		return ErrEmptyDomain
	case len(r.Descriptors) == 0:
		return ErrNoDescriptors
	}
	return nil
}

// withinBounds says whether r is too large.
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
