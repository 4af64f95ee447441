package rls

import (
	"errors"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Errors of messages that are not valid RateLimitRequests.
var (
	errMalformed = errors.New("malformed RateLimitRequest: the bytes are not a protobuf message")
	errTooDeep   = errors.New("malformed RateLimitRequest: unknown groups are nested more than 100 deep")
)

// maxGroups is the maximum nesting depth of groups. No field of this message is a group.
const maxGroups = 100

// Field numbers of the request, from envoy/service/ratelimit/v3/rls.proto and
// envoy/extensions/common/ratelimit/v3/ratelimit.proto.
const (
	requestDomain      = 1
	requestDescriptors = 2
	requestHits        = 3

	descriptorEntries  = 1
	descriptorLimit    = 2
	descriptorHits     = 3
	descriptorNegative = 4

	entryKey   = 1
	entryValue = 2

	overrideRequests   = 1
	overrideUnit       = 2
	overrideMultiplier = 3

	wrapperValue = 1
)

// decode parses c.message into c.request as protobuf would, with two exceptions: it accepts invalid UTF-8 unchanged, and it fails as soon
// as a request exceeds the limiter's bounds. Keys and values alias the message.
func (c *call) decode() error {
	r := reader{b: c.message}
	for r.next() {
		switch {
		case r.is(requestDomain, protowire.BytesType):
			c.request.Domain = r.bytes()
		case r.is(requestDescriptors, protowire.BytesType):
			c.decodeDescriptor(&r)
		case r.is(requestHits, protowire.VarintType):
			c.request.Hits = uint32(r.varint())
		default:
			r.skip()
		}
	}
	return r.err
}

// decodeDescriptor appends a descriptor to c.request.
func (c *call) decodeDescriptor(parent *reader) {
	if len(c.request.Descriptors) == limiter.MaxDescriptors {
		parent.fail(limiter.ErrTooManyDescriptors)
		return
	}
	r := reader{b: parent.bytes()}
	c.request.Descriptors = append(c.request.Descriptors, limiter.Descriptor{})
	d := &c.request.Descriptors[len(c.request.Descriptors)-1]
	first := len(c.entries)
	for r.next() {
		switch {
		case r.is(descriptorEntries, protowire.BytesType):
			if len(c.entries)-first == limiter.MaxEntries {
				r.fail(limiter.ErrTooManyEntries)
				break
			}
			c.entries = append(c.entries, decodeEntry(&r))
		case r.is(descriptorLimit, protowire.BytesType):
			d.HasOverride = true
			decodeOverride(&r, &d.Override)
		case r.is(descriptorHits, protowire.BytesType):
			d.HasHits = true
			decodeWrapper(&r, &d.Hits)
		case r.is(descriptorNegative, protowire.VarintType):
			d.Negative = r.varint() != 0
		default:
			r.skip()
		}
	}
	d.Entries = c.entries[first:len(c.entries):len(c.entries)]
	parent.fail(r.err)
}

// decodeEntry parses an entry.
func decodeEntry(parent *reader) (e descriptors.Entry) {
	r := reader{b: parent.bytes()}
	for r.next() {
		switch {
		case r.is(entryKey, protowire.BytesType):
			e.Key = r.bytes()
		case r.is(entryValue, protowire.BytesType):
			e.Value = r.bytes()
		default:
			r.skip()
		}
	}
	parent.fail(r.err)
	return e
}

// decodeOverride merges a message into o, as protobuf does if a field occurs twice.
func decodeOverride(parent *reader, o *descriptors.Override) {
	r := reader{b: parent.bytes()}
	for r.next() {
		switch {
		case r.is(overrideRequests, protowire.VarintType):
			o.RequestsPerUnit = uint32(r.varint())
		case r.is(overrideUnit, protowire.VarintType):
			o.Unit = unit(int32(r.varint()))
		case r.is(overrideMultiplier, protowire.BytesType):
			m := uint64(o.Multiplier)
			decodeWrapper(&r, &m)
			o.Multiplier = uint32(m)
		default:
			r.skip()
		}
	}
	parent.fail(r.err)
}

// decodeWrapper parses a google.protobuf.UInt64Value or UInt32Value. If it has no value, v is unchanged.
func decodeWrapper(parent *reader, v *uint64) {
	r := reader{b: parent.bytes()}
	for r.next() {
		if r.is(wrapperValue, protowire.VarintType) {
			*v = r.varint()
		} else {
			r.skip()
		}
	}
	parent.fail(r.err)
}

// unit returns the unit with number n in answers. Requests use the same numbers, but have no name for the week. The enumeration is open,
// so n may have any value.
func unit(n int32) descriptors.Unit {
	if n < int32(descriptors.Second) || n > int32(descriptors.Week) {
		return descriptors.UnitUnknown
	}
	return descriptors.Unit(n)
}

// reader iterates over the fields of one message. After each next, call exactly one of bytes, varint and skip to consume the value.
type reader struct {
	b      []byte
	number protowire.Number
	kind   protowire.Type
	err    error // the first error
}

// next reads the tag of the next field. It returns false at the end of the message or after an error.
func (r *reader) next() bool {
	if len(r.b) == 0 || r.err != nil {
		return false
	}
	tag := r.varint()
	number := tag >> 3
	if number < uint64(protowire.MinValidNumber) || number > uint64(protowire.MaxValidNumber) {
		r.fail(errMalformed)
	}
	r.number, r.kind = protowire.Number(number), protowire.Type(tag&7)
	return r.err == nil
}

// is reports whether the current field has this number and type.
func (r *reader) is(number protowire.Number, kind protowire.Type) bool {
	return r.number == number && r.kind == kind
}

// varint consumes a varint.
func (r *reader) varint() uint64 {
	if len(r.b) > 0 && r.b[0] < 0x80 {
		v := uint64(r.b[0])
		r.b = r.b[1:]
		return v
	}
	v, n := protowire.ConsumeVarint(r.b)
	r.advance(n)
	return v
}

// bytes consumes a length-delimited value, which aliases the message.
func (r *reader) bytes() []byte {
	n := r.varint()
	if r.err != nil || n > uint64(len(r.b)) {
		r.fail(errMalformed)
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

// skip consumes a field that is unknown or has an unexpected type.
func (r *reader) skip() {
	if r.kind == protowire.StartGroupType {
		r.skipGroup(r.number, maxGroups)
		return
	}
	r.advance(protowire.ConsumeFieldValue(r.number, r.kind, r.b)) // fails if a group ends that has not started
}

// skipGroup consumes the rest of a group, in which groups may be nested at most depth-1 deep. As in protobuf, numbers inside the group
// may exceed those of fields.
func (r *reader) skipGroup(number protowire.Number, depth int) {
	if depth == 0 {
		r.fail(errTooDeep)
		return
	}
	for r.err == nil {
		inner, kind, n := protowire.ConsumeTag(r.b)
		r.advance(n)
		switch {
		case r.err != nil:
		case kind == protowire.EndGroupType:
			if inner != number {
				r.fail(errMalformed)
			}
			return
		case kind == protowire.StartGroupType:
			r.skipGroup(inner, depth-1)
		default:
			r.advance(protowire.ConsumeFieldValue(inner, kind, r.b))
		}
	}
}

// advance skips n bytes. A negative n is an error from protowire for malformed bytes.
func (r *reader) advance(n int) {
	if n < 0 {
		r.fail(errMalformed)
		return
	}
	r.b = r.b[n:]
}

// fail records the first error.
func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// longestLogged is the maximum length of a client's text in the log, in bytes.
const longestLogged = 256

// Short shortens a client's text for the log.
func Short(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), longestLogged)], "\uFFFD")
}

// outline returns the domain of a message and its number of descriptors. The domain aliases the message. It is nil if the message has
// none or is not valid.
func outline(message []byte) (domain []byte, many int) {
	r := reader{b: message}
	for r.next() && many <= limiter.MaxDescriptors {
		switch {
		case r.is(requestDomain, protowire.BytesType):
			domain = r.bytes()
		case r.is(requestDescriptors, protowire.BytesType):
			many++
			r.bytes()
		default:
			r.skip()
		}
	}
	if r.err != nil || many > limiter.MaxDescriptors {
		return nil, 0
	}
	return domain, many
}

// hashOf returns a hash of domain; 0 if it is nil.
func hashOf(domain []byte) uint32 {
	if domain == nil {
		return 0
	}
	const offset, prime = 2166136261, 16777619 // FNV-1a
	h := uint32(offset)
	for _, b := range domain {
		h = (h ^ uint32(b)) * prime
	}
	return h
}
