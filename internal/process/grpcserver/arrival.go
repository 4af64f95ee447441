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

// farAway is how far away a deadline is at which a call must not be shed on its headers. grpc would keep its timer, about 300
// bytes, until the deadline, which its client chooses and which may be years away.
const farAway = 2 * time.Second

// endsAfter is how long a shed call of another method with a far deadline stays in progress.
const endsAfter = 10 * time.Millisecond

// Arrival is a call from when its headers have been read. It is the call's context, too.
type Arrival struct {
	context.Context //nolint:containedctx // it is one

	Conn    *netlimit.Conn
	At      time.Time
	Shed    error // the handler of the service returns it
	server  *Server
	method  string // in full
	waiting netlimit.Call
	end     func() // ends a shed call after endsAfter; nil for other calls
}

type arrivalKey struct{}

// Value implements context.Context.
//
//nolint:ireturn // as there
func (a *Arrival) Value(key any) any {
	if key == (arrivalKey{}) {
		return a
	}
	return a.Context.Value(key)
}

// Done implements context.Context. The first call for a shed call starts the timer that ends it: grpc calls Done only after it has set its
// own timer for the deadline, which it would not stop for a call that ended before.
func (a *Arrival) Done() <-chan struct{} {
	if a.end != nil {
		a.end()
	}
	return a.Context.Done()
}

// ArrivalOf returns the arrival of the call with that context, or with one that comes from it.
func ArrivalOf(ctx context.Context) *Arrival {
	return ctx.Value(arrivalKey{}).(*Arrival)
}

// Received notes that a message of the call has come, with so many bytes, or with an error that it never will. It logs one that is too
// large, once a minute: the caller of a proxy may choose the size of its messages, and the proxy may let that caller pass then.
func (a *Arrival) Received(size int, err error) {
	if err == nil {
		a.waiting.Received(size)
		return
	}
	a.waiting.End()
	if status.Code(err) != codes.ResourceExhausted && !errors.Is(err, errOtherSize) && !errors.Is(err, errOtherValues) {
		return
	}
	if omitted, ok := a.server.large.Allow(a.method); ok {
		a.server.config.Log.Warn("a message is too large, so its call failed, and a proxy may let the request pass: make the proxy send less",
			"method", path.Base(a.method), "client", a.Conn.RemoteAddr().String(), "reason", err.Error(), "omitted", omitted)
	}
}

// tap is called for each call as soon as its headers have been read, by the goroutine that reads its connection.
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
	case a.Shed != nil: // its handler may not run until the message has come
		var end context.CancelFunc
		a.Context, end = context.WithCancel(ctx)
		a.end = sync.OnceFunc(func() { time.AfterFunc(endsAfter, end) })
	default:
		context.AfterFunc(ctx, a.waiting.End)
	}
	return a, nil
}
