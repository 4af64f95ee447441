package grpcserver

import (
	"context"
	"path"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	"github.com/ratelimitd/ratelimitd/internal/netlimit"
)

// farAway is how long until a deadline beyond which a call must not be refused on its headers: grpc would keep its timer,
// about 300 bytes, until its deadline, which its client chooses and which may be years away.
const farAway = 2 * time.Second

// endsAfter is how long a call may be in progress that is refused and not near its deadline. The message of one that is
// answered all the same has come with its headers.
const endsAfter = 10 * time.Millisecond

// Near reports whether a call can be refused on its headers.
func Near(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return !ok || time.Until(deadline) <= farAway
}

// tap is called for each call as soon as its headers have been read, by what reads its connection.
func (s *Server) tap(ctx context.Context, info *tap.Info) (arrived context.Context, err error) {
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // grpc holds the lock of the connection: all of it would hang for ever
			arrived, err = nil, s.Recovered(ctx, path.Base(info.FullMethodName), p)
		}
	}()
	var conn *netlimit.Conn
	if p, ok := peer.FromContext(ctx); ok {
		conn = netlimit.Of(p.LocalAddr)
	}
	if info.FullMethodName == s.method {
		return s.service.Arrive(ctx, conn)
	}
	return s.arrive(ctx, conn)
}

// other is the context of a call of another method than the service's.
type other struct {
	context.Context //nolint:containedctx // it is one

	waiting *netlimit.Waiting
	conn    *netlimit.Conn
	call    netlimit.Call
}

type otherKey struct{}

// arrive returns the context of a call of another method, or refuses it if too many wait for their message. Health and the
// admin API answer whatever the load.
func (s *Server) arrive(ctx context.Context, conn *netlimit.Conn) (context.Context, error) {
	a := &other{Context: ctx, waiting: s.config.Waiting, conn: conn}
	switch {
	case a.waiting.Begin(ctx, conn, netlimit.Other, &a.call):
		context.AfterFunc(ctx, a.call.End)
		return a, nil
	case Near(ctx):
		return nil, ErrWaiting
	default:
		ended, end := context.WithCancel(ctx)
		time.AfterFunc(endsAfter, end) // its handler waits for the message
		return ended, nil
	}
}

// received tells that the message of a call has come.
func received(ctx context.Context) {
	if a, ok := ctx.Value(otherKey{}).(*other); ok {
		a.call.End()
	}
}

// open counts a stream on the connection of the call until closed is called. It returns false if there are too many.
func (a *other) open() (closed func(), ok bool) {
	if a == nil {
		return func() {}, true
	}
	return a.conn.Open()
}

// receive receives a message of a stream, of which there may be several, by next. A stream may wait for all but its first
// message for as long as it likes.
func (a *other) receive(next func() error) error {
	if a == nil {
		return next()
	}
	var later netlimit.Call
	if a.waiting.Begin(a.Context, a.conn, netlimit.Later, &later) {
		defer later.End()
	}
	defer a.call.End()
	return next()
}

// Value implements context.Context.
//
//nolint:ireturn // as there
func (a *other) Value(key any) any {
	if key == (otherKey{}) {
		return a
	}
	return a.Context.Value(key)
}

// MetadataSize returns about how many bytes the metadata of a call takes.
func MetadataSize(ctx context.Context) (size int64) {
	md, _ := metadata.FromIncomingContext(ctx)
	for key, values := range md {
		for _, value := range values {
			size += int64(len(key) + len(value) + 32)
		}
	}
	return size
}
