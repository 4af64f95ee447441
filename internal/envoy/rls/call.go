package rls

import (
	"google.golang.org/grpc/mem"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// How much a call may have room for and still be pooled, so that a single huge request does not keep its memory.
const (
	pooledEntries     = 1024
	pooledDescriptors = 256 // about 1 KB each, with the memory for deciding them
)

// call is the memory of one request, from when its message has been received until its answer has been encoded. A call that waits
// has none.
type call struct {
	buffer  mem.Buffer // the message; nil until it has been received
	message []byte     // the contents of buffer
	request limiter.Request
	scratch limiter.Scratch
	entries []descriptors.Entry // backs the entries of all descriptors
}

// hold keeps a message until the call is reset, and then frees it.
func (c *call) hold(message mem.Buffer) { c.buffer, c.message = message, message.ReadOnlyData() }

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
	return cap(c.entries) <= pooledEntries && cap(c.request.Descriptors) <= pooledDescriptors
}
