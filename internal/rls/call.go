package rls

import (
	"google.golang.org/grpc/mem"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// pooledEntries is how many entries a call may have room for and still be pooled, so that one huge request does not keep
// its memory for ever.
const pooledEntries = 1024

// call is what one request needs from its first byte until its answer is encoded.
type call struct {
	buffer  mem.Buffer // the message; nil before it was received
	message []byte     // what buffer holds
	request limiter.Request
	verdict limiter.Verdict
	entries []descriptors.Entry // backs the entries of all descriptors
}

// hold keeps data until the call is reset. A second message is none of ours: grpc answers it with INTERNAL.
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
