package rls

import (
	"google.golang.org/grpc/mem"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// pooledEntries is how many entries a call may have room for and still be pooled, so that a single huge request does
// not keep its memory forever.
const pooledEntries = 1024

// call is what one request needs from its first byte until its answer has been encoded.
type call struct {
	buffer  mem.Buffer // the message; nil until it has been received
	message []byte     // the contents of buffer
	request limiter.Request
	scratch limiter.Scratch
	entries []descriptors.Entry // backs the entries of all descriptors
}

// hold keeps data until the call is reset. It ignores a second message, which grpc answers with INTERNAL.
func (c *call) hold(data mem.BufferSlice) {
	if c.buffer != nil {
		return
	}
	c.buffer = data.MaterializeToBuffer(mem.DefaultBufferPool())
	c.message = c.buffer.ReadOnlyData()
}

// reset forgets the message and everything that points into it, and reports whether c is worth keeping.
func (c *call) reset() bool {
	clear(c.entries)
	clear(c.request.Descriptors)
	c.entries = c.entries[:0]
	c.request = limiter.Request{Descriptors: c.request.Descriptors[:0]}
	c.message = nil
	if c.buffer != nil {
		c.buffer.Free()
		c.buffer = nil
	}
	return cap(c.entries) <= pooledEntries
}
