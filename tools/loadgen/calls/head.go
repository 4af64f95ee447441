package calls

import (
	"bytes"
	"fmt"
	"time"

	"golang.org/x/net/http2/hpack"
)

// head encodes the headers of calls. From the second call on, they refer to the dynamic table, except for the path, which Envoy
// encodes literally each time.
type head struct {
	fields []hpack.HeaderField
	buf    bytes.Buffer
	enc    *hpack.Encoder
	fresh  int // number of next blocks that may differ from earlier ones
}

// newHead returns the encoder of a connection. A timeout of 0 is omitted.
func newHead(timeout time.Duration) *head {
	h := &head{fields: fields(timeout), fresh: 2}
	h.enc = hpack.NewEncoder(&h.buf)
	return h
}

// resize limits the server's dynamic table to size bytes.
func (h *head) resize(size uint32) {
	h.enc.SetMaxDynamicTableSizeLimit(size)
	h.enc.SetMaxDynamicTableSize(min(size, tableSize))
	h.fresh = 2
}

// block encodes the headers of the next call.
func (h *head) block() []byte {
	if h.fresh > 0 {
		h.fresh--
		h.buf.Reset()
		for _, f := range h.fields {
			_ = h.enc.WriteField(f) // a buffer never fails
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

// Headers encodes the headers of a call as one block without references. A timeout of 0 is omitted.
func Headers(timeout time.Duration) []byte {
	h := newHead(timeout)
	h.resize(0)
	return h.block()
}

// timeoutText formats a timeout like gRPC, with up to eight digits.
func timeoutText(d time.Duration) string {
	if d < 100*time.Second {
		return fmt.Sprintf("%du", max(1, d.Microseconds()))
	}
	return fmt.Sprintf("%dm", d.Milliseconds())
}
