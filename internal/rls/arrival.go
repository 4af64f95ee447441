package rls

import (
	"context"
	"path"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/tap"

	"github.com/ratelimitd/ratelimitd/internal/overload"
)

// arrival is the context of a call of ShouldRateLimit, which the gate counts from when its headers have been read.
type arrival struct {
	context.Context //nolint:containedctx // it is one

	gate    *overload.Gate
	client  *overload.Client // nil if there is no need to know it
	waiting *waiting
	origin  origin
	seen    overload.Seen // what it seemed to be when it came, if known
	known   bool
	at      time.Time
	counted atomic.Bool // by gate
	waits   atomic.Bool // and is counted by waiting
	message mem.Buffer  // nil until it has been received
	answer  answer      // empty until there is one; here so that it takes no allocation of its own

	// For waiting, and guarded by the shard, but for its number.
	shard          uint8
	listed         bool
	gaveWay        bool   // to another call
	looks          uint8  // that have found it waiting, 2 at most
	head           uint32 // bytes of metadata, once it has been looked at
	stream         grpc.ServerTransportStream
	previous, next *arrival
}

type arrivalKey struct{}

// arrive is called for each call as soon as its headers have been read, by what reads its connection. It refuses calls of
// ShouldRateLimit if there are too many, and others only if too many of those wait for their message: health and the admin API
// answer whatever the load.
func (s *Service) arrive(ctx context.Context, info *tap.Info) (arrived context.Context, err error) {
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // grpc holds the lock of the connection: all of it would hang for ever
			arrived, err = nil, s.recovered(ctx, path.Base(info.FullMethodName), p)
		}
	}()
	from := originOf(ctx)
	seen, known := from.seen()
	var hint *overload.Seen
	if known {
		hint = &seen
	}
	if info.FullMethodName != fullMethod {
		return s.others.arrive(ctx, from)
	}
	var client *overload.Client
	if from.conn != nil && s.config.Gate.Limited() {
		client = &from.conn.client
	}
	if s.config.Gate.Full(client, hint, 0) {
		s.config.Hooks.Shed()
		return refuse(ctx, errOverload)
	}
	shard, room, another := s.waiting.enter(ctx, from.conn)
	if another || !room {
		s.config.Hooks.TooManyWaiting()
	}
	if !room {
		if s.waiting.hog(ctx) {
			from.conn.receives(false)
		}
		return refuse(ctx, errWaiting)
	}
	a := &arrival{Context: ctx, gate: s.config.Gate, client: client, waiting: &s.waiting, origin: from, at: time.Now(), shard: shard}
	a.seen, a.known = seen, known
	a.waits.Store(true)
	a.count()
	s.waiting.list(a)
	return a, nil
}

// patience returns for how long its caller waits for it; 0 if that is not known.
func (a *arrival) patience() time.Duration {
	if deadline, ok := a.Deadline(); ok {
		return deadline.Sub(a.at)
	}
	return 0
}

// count has the gate count the call, unless it does so already.
func (a *arrival) count() {
	if !a.counted.Swap(true) {
		a.gate.Enter(a.client)
	}
}

// leaveGate ends that, and reports whether it was counted.
func (a *arrival) leaveGate() bool {
	counted := a.counted.Swap(false)
	if counted {
		a.gate.Leave(a.client)
	}
	return counted
}

// leave has nobody count the call any more.
func (a *arrival) leave() {
	a.leaveGate()
	a.stopWaiting()
}

func (a *arrival) stopWaiting() {
	if a.waits.Swap(false) {
		a.waiting.leave(a.origin.conn)
	}
}

// await receives the message.
func (a *arrival) await(stream grpc.ServerStream) error {
	err := a.watched(stream)
	a.stopWaiting()
	a.origin.conn.receives(err == nil)
	a.count() // again, if it was slow
	return err
}

// watched receives the message while waiting looks after the call.
func (a *arrival) watched(stream grpc.ServerStream) error {
	a.waiting.watch(a, grpc.ServerTransportStreamFromContext(stream.Context()))
	defer a.waiting.forget(a)
	return stream.RecvMsg(a)
}

// receive keeps the message. It ignores a second one, which grpc answers with INTERNAL.
func (a *arrival) receive(data mem.BufferSlice) {
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

// Err implements context.Context. A call that has ended before grpc asks never reaches its handler, so it is no longer
// counted; if it does, the handler counts it. Where grpc does not ask, [waiting] finds out.
func (a *arrival) Err() error {
	err := a.Context.Err()
	if err != nil {
		a.leave()
		a.waiting.unlist(a)
	}
	return err
}
