package rls

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/ratelimitd/ratelimitd/internal/grpcserver"
	"github.com/ratelimitd/ratelimitd/internal/netlimit"
)

// arrival is the context of a call from when its headers have been read. It has what the call needs of its own, so that it
// is one allocation.
type arrival struct {
	context.Context //nolint:containedctx // it is one

	conn    *netlimit.Conn // nil if its listener bounds nothing
	waiting netlimit.Call
	at      time.Time
	refused error      // its handler returns it
	message mem.Buffer // nil until it has been received
	answer  answer     // empty until there is one
}

type arrivalKey struct{}

// Arrive implements grpcserver.Service. It refuses calls while there is no time for more, and while too many wait for
// their message.
func (s *Service) Arrive(ctx context.Context, conn *netlimit.Conn) (context.Context, error) {
	a := &arrival{Context: ctx, conn: conn, at: time.Now()}
	switch {
	case conn != nil && !s.config.Gate.LetIn(&conn.Source):
		s.config.Hooks.Shed()
		a.refused = errOverload
	case !s.config.Waiting.Begin(ctx, conn, netlimit.Hot, &a.waiting):
		a.refused = grpcserver.ErrWaiting
	}
	if a.refused != nil && grpcserver.Near(ctx) {
		return nil, a.refused
	}
	return a, nil
}

// await receives the message.
func (a *arrival) await(stream grpc.ServerStream) error {
	err := stream.RecvMsg(a)
	if err != nil {
		a.waiting.End()
		return err
	}
	a.waiting.Received(a.message.Len())
	return nil
}

// Receive implements grpcserver.Receiver. It ignores a second message, which grpc answers with INTERNAL.
func (a *arrival) Receive(data mem.BufferSlice) {
	if a.message == nil {
		a.message = data.MaterializeToBuffer(poolFor(data.Len()))
	}
}

// largestPooled is the largest of the buffers in grpc's pool but one, which has 1 MiB.
const largestPooled = 32 << 10

// poolFor returns where the memory comes from for a message of so many bytes, which it takes as long as its call is in progress.
//
//nolint:ireturn // as grpc wants it
func poolFor(size int) mem.BufferPool {
	if size > largestPooled {
		return mem.NopBufferPool{}
	}
	return mem.DefaultBufferPool()
}

// drop frees the message, if there is one.
func (a *arrival) drop() {
	if a.message != nil {
		a.message.Free()
	}
}

// Value implements context.Context.
//
//nolint:ireturn // as there
func (a *arrival) Value(key any) any {
	if key == (arrivalKey{}) {
		return a
	}
	return a.Context.Value(key)
}
