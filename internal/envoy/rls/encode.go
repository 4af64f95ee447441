package rls

import (
	"math"
	"strings"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Codes of RateLimitResponse.
const (
	codeOK        = 1
	codeOverLimit = 2
)

// Field numbers of the response, from envoy/service/ratelimit/v3/rls.proto and envoy/config/core/v3/base.proto.
const (
	responseCode     = 1
	responseStatuses = 2
	responseHeaders  = 3
	requestHeaders   = 4
	responseBody     = 5
	responseMetadata = 6

	statusCode      = 1
	statusLimit     = 2
	statusRemaining = 3
	statusReset     = 4

	limitRequests   = 1
	limitUnit       = 2
	limitName       = 3
	limitMultiplier = 4

	durationSeconds = 1

	headerKey   = 1
	headerValue = 2
)

// answer is an encoded RateLimitResponse. It is a mem.Buffer that need not be freed. It contains the slice of buffers that grpc expects
// and, unless the answer is long, its bytes. The zero value is ready for use. Encoding overwrites the previous answer.
type answer struct {
	grpcserver.Reply

	slice [1]mem.Buffer
	room  [88]byte
}

// Send implements grpcserver.Sender.
func (a *answer) Send() mem.BufferSlice { return a.slice[:] }

// statusSize is an upper bound for the size of most statuses without the name of a limit, in bytes.
const statusSize = 28

// memory returns an empty buffer for an answer with the given number of statuses.
func (a *answer) memory(statuses int) []byte {
	switch size := statuses * statusSize; {
	case cap(a.SliceBuffer) > 0:
		return a.SliceBuffer[:0]
	case size <= len(a.room):
		return a.room[:0]
	default:
		return make([]byte, 0, size)
	}
}

// encode encodes v, the verdict on r, in a.
func (s *Service) encode(a *answer, r *limiter.Request, v *limiter.Verdict) {
	b := appendVerdict(a.memory(len(v.Statuses)), v)
	b = s.appendHeaders(b, v)
	if s.config.Body != nil && v.Over {
		b = s.config.Body.append(b, r, v)
	}
	if s.config.DynamicMetadata {
		b = s.appendMetadata(b, r, v)
	} else if v.Reservation != "" {
		b = appendStruct(b, &structpb.Struct{Fields: withReservation(nil, v.Reservation)})
	}
	a.SliceBuffer = b
	a.slice[0] = a
}

// appendVerdict appends overall_code and statuses.
func appendVerdict(b []byte, v *limiter.Verdict) []byte {
	b = append(b, tag(responseCode, protowire.VarintType), code(v.Over))
	for i := range v.Statuses {
		b = appendStatus(b, &v.Statuses[i])
	}
	return b
}

// appendStatus appends a status.
func appendStatus(b []byte, st *limiter.Status) []byte {
	b, start := open(b, responseStatuses)
	b = append(b, tag(statusCode, protowire.VarintType), code(st.Over))
	if st.Hidden() { // a proxy would reveal the numbers
		return shut(b, start)
	}
	if st.RateLimit != nil {
		b = appendLimit(b, st.RateLimit)
	}
	b = appendVarint(b, statusRemaining, min(remaining(st), math.MaxUint32))
	if st.RateLimit != nil {
		var inner int
		b, inner = open(b, statusReset)
		b = appendVarint(b, durationSeconds, uint64(st.ResetSeconds()))
		b = shut(b, inner)
	}
	return shut(b, start)
}

// appendLimit appends current_limit of a status.
func appendLimit(b []byte, it *descriptors.RateLimit) []byte {
	b, start := open(b, statusLimit)
	b = appendVarint(b, limitRequests, uint64(it.RequestsPerUnit))
	if it.Unit != descriptors.Forever { // which Envoy does not know
		b = appendVarint(b, limitUnit, uint64(it.Unit))
	}
	if it.Name != "" {
		b = appendString(b, limitName, it.Name)
	}
	if it.Multiplier > 1 {
		var inner int
		b, inner = open(b, limitMultiplier)
		b = appendVarint(b, wrapperValue, uint64(it.Multiplier))
		b = shut(b, inner)
	}
	return shut(b, start)
}

// code returns the code of a verdict.
func code(over bool) byte {
	if over {
		return codeOverLimit
	}
	return codeOK
}

// remaining returns limit_remaining of a status, which may exceed the 32 bits of that.
func remaining(st *limiter.Status) uint64 {
	switch {
	case st.Unlimited():
		return math.MaxUint32
	case st.Over:
		return 0
	default:
		return st.Remaining
	}
}

// ceil returns d in units, rounded up; 0 if d is negative.
func ceil(d, unit time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/unit) + 1
}

// tag returns the tag of a field whose number is below 16. All fields here have such numbers.
func tag(number protowire.Number, kind protowire.Type) byte {
	return byte(number)<<3 | byte(kind)
}

// appendVarint appends a field, or nothing if v is 0, as in protobuf.
func appendVarint(b []byte, number protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(append(b, tag(number, protowire.VarintType)), v)
}

// appendString appends a string in which U+FFFD replaces every run of invalid UTF-8, which Envoy could not decode.
func appendString(b []byte, number protowire.Number, v string) []byte {
	return protowire.AppendString(append(b, tag(number, protowire.BytesType)), valid(v))
}

// valid returns s with every run of invalid UTF-8 replaced by U+FFFD.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// open begins an embedded message and returns its start. [shut] ends the message.
func open(b []byte, number protowire.Number) ([]byte, int) {
	b = append(b, tag(number, protowire.BytesType), 0)
	return b, len(b)
}

// shut sets the length of the embedded message that starts at start. open reserved one byte for it; shut moves the message if it needs
// more.
func shut(b []byte, start int) []byte {
	n := uint64(len(b) - start)
	if n < 0x80 {
		b[start-1] = byte(n)
		return b
	}
	var length [10]byte
	l := protowire.AppendVarint(length[:0], n)
	b = append(b, l[1:]...)
	copy(b[start+len(l)-1:], b[start:])
	copy(b[start-1:], l)
	return b
}
