package rls

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// others bounds, as [waiting] does for ShouldRateLimit, the calls of other methods that wait for their message, in number and
// in time. They have a bound of their own, so that no flood of the one keeps the others out. There are few of them, so each
// may have a timer.
type others struct {
	most    int64
	refused func() // is called for each call that is refused
	calls   atomic.Int64
}

// otherCall is the context of a call of another method. It ends if the message does not come in time.
type otherCall struct {
	context.Context //nolint:containedctx // it is one

	came func() // the message has, or never will
}

type otherKey struct{}

// arrive returns the context of a call of another method, whose headers have been read, or refuses it.
func (o *others) arrive(ctx context.Context) (context.Context, error) {
	if o.calls.Add(1) > o.most {
		o.calls.Add(-1)
		o.refused()
		return nil, errWaiting
	}
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(messageTime, func() { cancel(errNoMessage) })
	c := &otherCall{Context: ctx, came: sync.OnceFunc(func() {
		late.Stop()
		o.calls.Add(-1)
	})}
	context.AfterFunc(ctx, c.came) // grpc cancels it at the end of the call, whatever becomes of that
	return c, nil
}

// messageCame tells of the message of the call whose context it is given.
func messageCame(ctx context.Context) {
	if c, ok := ctx.Value(otherKey{}).(*otherCall); ok {
		c.came()
	}
}

// Value implements context.Context.
//
//nolint:ireturn // as there
func (c *otherCall) Value(key any) any {
	if key == (otherKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// Err implements context.Context. A caller whose message does not come is told what one is told whose deadline has passed.
func (c *otherCall) Err() error {
	err := c.Context.Err()
	if err != nil && context.Cause(c.Context) == errNoMessage { //nolint:errorlint // as it was given
		return context.DeadlineExceeded
	}
	return err
}
