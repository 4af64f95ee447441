package calls

import (
	"bytes"
	"fmt"
	"time"

	"golang.org/x/net/http2/hpack"
)

// head writes the headers of calls. Those of the second and all further calls refer to what the first one has said, but for the path,
// which Envoy's codecs write out each time.
type head struct {
	fields []hpack.HeaderField
	buf    bytes.Buffer
	enc    *hpack.Encoder
	fresh  int // blocks that may differ from what was written before
}

// newHead returns a head for calls of a connection; a timeout of 0 is not told.
func newHead(timeout time.Duration) *head {
	h := &head{fields: fields(timeout), fresh: 2}
	h.enc = hpack.NewEncoder(&h.buf)
	return h
}

// resize has the server keep no more than so many bytes of headers to refer to.
func (h *head) resize(size uint32) {
	h.enc.SetMaxDynamicTableSizeLimit(size)
	h.enc.SetMaxDynamicTableSize(min(size, tableSize))
	h.fresh = 2
}

// block returns the headers of the next call.
func (h *head) block() []byte {
	if h.fresh > 0 {
		h.fresh--
		h.buf.Reset()
		for _, f := range h.fields {
			_ = h.enc.WriteField(f) // a buffer takes everything
		}
	}
	return h.buf.Bytes()
}

// fields returns the headers of a call.
func fields(timeout time.Duration) []hpack.HeaderField {
	all := []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", Sensitive: true},
		{Name: ":authority", Value: "ratelimit"},
		{Name: "te", Value: "trailers"},
		{Name: "content-type", Value: "application/grpc"},
	}
	if timeout > 0 {
		all = append(all, hpack.HeaderField{Name: "grpc-timeout", Value: timeoutText(timeout)})
	}
	return all
}

// Headers returns the headers of a call as one block, without references to others; a timeout of 0 is not told.
func Headers(timeout time.Duration) []byte {
	h := newHead(timeout)
	h.resize(0)
	return h.block()
}

// timeoutText returns a time as gRPC writes it, which has eight digits.
func timeoutText(d time.Duration) string {
	if d < 100*time.Second {
		return fmt.Sprintf("%du", max(1, d.Microseconds()))
	}
	return fmt.Sprintf("%dm", d.Milliseconds())
}
