package grpcserver

import (
	"context"
	"errors"
	"path"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/ratelimitd/ratelimitd/internal/process/netlimit"
)

// farAway is the longest time until a call's deadline at which the call may be shed when its headers arrive. grpc keeps the
// timer of a call shed then, about 300 bytes, until the deadline. The client chooses the deadline, which may be years away.
const farAway = 2 * time.Second

// endsAfter is the time after which a shed call of another method with a far deadline is cancelled.
const endsAfter = 10 * time.Millisecond

// Arrival is a call from the arrival of its headers. It is also the call's context.
type Arrival struct {
	context.Context //nolint:containedctx // it is one

	Conn    *netlimit.Conn
	At      time.Time
	Shed    error // returned by the service's handler
	server  *Server
	method  string // full name
	waiting netlimit.Call
	end     func() // cancels a shed call after endsAfter; nil for other calls
}

type arrivalKey struct{}

// Value implements [context.Context].
//
//nolint:ireturn // as there
func (a *Arrival) Value(key any) any {
	if key == (arrivalKey{}) {
		return a
	}
	return a.Context.Value(key)
}

// Done implements [context.Context]. For a shed call, the first Done starts the timer that cancels the call. grpc calls Done only after
// setting its own timer for the deadline, which it would not stop for a call that ended earlier.
func (a *Arrival) Done() <-chan struct{} {
	if a.end != nil {
		a.end()
	}
	return a.Context.Done()
}

// ArrivalOf returns the arrival of the call with this context or a derived one.
func ArrivalOf(ctx context.Context) *Arrival {
	return ctx.Value(arrivalKey{}).(*Arrival)
}

// Received records that the message of the call has arrived, with its size, or will not arrive, with the error. It logs messages that
// are too large, once a minute: callers of a proxy may choose the size of its messages, and after the failed call, the proxy may let
// the request pass.
func (a *Arrival) Received(size int, err error) {
	if err == nil {
		a.waiting.Received(size)
		return
	}
	a.waiting.End()
	if status.Code(err) != codes.ResourceExhausted && !errors.Is(err, errOtherSize) && !errors.Is(err, errOtherValues) {
		return
	}
	a.server.large.Through(a.server.config.Log, a.method).
		Warn("a message is too large, so its call failed, and a proxy may let the request pass: make the proxy send less",
			"method", path.Base(a.method), "client", a.Conn.RemoteAddr().String(), "reason", err.Error())
}

// tap is called for each call when its headers have been read, by the goroutine that reads the connection.
func (s *Server) tap(ctx context.Context, info *tap.Info) (arrived context.Context, err error) {
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // grpc holds the lock of the connection: all of it would hang indefinitely
			arrived, err = nil, s.recovered(ctx, path.Base(info.FullMethodName), p)
		}
	}()
	p, _ := peer.FromContext(ctx)
	a := &Arrival{Context: ctx, Conn: netlimit.Of(p.LocalAddr), At: time.Now(), server: s, method: info.FullMethodName}
	kind := netlimit.Other
	if info.FullMethodName == s.method {
		kind, a.Shed = netlimit.Hot, s.service.LetIn(a.Conn)
	}
	if a.Shed == nil && !a.Conn.Begin(ctx, kind, &a.waiting) {
		a.Shed = errWaiting
	}
	if deadline, ok := ctx.Deadline(); a.Shed != nil && (!ok || time.Until(deadline) <= farAway) {
		return nil, a.Shed
	}
	switch {
	case kind == netlimit.Hot:
	case a.Shed != nil: // the handler may not run until the message has arrived
		var end context.CancelFunc
		a.Context, end = context.WithCancel(ctx)
		a.end = sync.OnceFunc(func() { time.AfterFunc(endsAfter, end) })
	default:
		context.AfterFunc(ctx, a.waiting.End)
	}
	return a, nil
}
