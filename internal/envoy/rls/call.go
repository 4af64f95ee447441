package rls

import (
	"google.golang.org/grpc/mem"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Maximum capacities of a pooled call, so that a single huge request does not pin its memory.
const (
	pooledEntries     = 1024
	pooledDescriptors = 256 // about 1 KB each, including Scratch
)

// call is the memory of one request from the end of its wait at the gate until its answer has been encoded.
type call struct {
	buffer  mem.Buffer // holds the message
	message []byte     // the contents of buffer
	request limiter.Request
	scratch limiter.Scratch
	entries []descriptors.Entry // backs the entries of all descriptors
}

// hold takes ownership of a message. reset frees it.
func (c *call) hold(message mem.Buffer) { c.buffer, c.message = message, message.ReadOnlyData() }

// reset drops the message and all references into it. It reports whether c is small enough for the pool.
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
