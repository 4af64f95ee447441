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
	look    func() // has somebody look at what is on its way, as long as calls wait
	calls   atomic.Int64

	mu   sync.Mutex
	open map[*otherCall]int // that wait, and how many looks at what is on its way have found them
}

// otherCall is the context of a call of another method. It ends if the message does not come in time.
type otherCall struct {
	context.Context //nolint:containedctx // it is one

	others *others
	origin origin
	head   uint32 // bytes of metadata
	end    context.CancelCauseFunc
	came   func() // the first message has, or never will
}

type otherKey struct{}

// maxOpen is how many streams of other methods, such as those that watch health, may be open on a connection: they have no end, and
// each keeps its metadata. Clients have one for each service that they watch.
const maxOpen = 16

// endsAfter is how long a call that is refused may be in progress where its deadline is far away. The message of one that is answered all the
// same has come with its headers.
const endsAfter = 10 * time.Millisecond

// holdOpen counts a stream on the connection on which the call of ctx came, until closed is called, or refuses it.
func holdOpen(ctx context.Context) (closed func(), err error) {
	c, ok := ctx.Value(otherKey{}).(*otherCall)
	if !ok || c.origin.conn == nil {
		return func() {}, nil
	}
	streams := &c.origin.conn.streams
	if streams.Add(1) > maxOpen {
		streams.Add(-1)
		return nil, errStreams
	}
	return func() { streams.Add(-1) }, nil
}

// arrive returns the context of a call of another method, whose headers have been read, or refuses it.
func (o *others) arrive(ctx context.Context, from origin) (context.Context, error) {
	if o.calls.Add(1) > o.most {
		o.calls.Add(-1)
		o.refused()
		from.conn.receives(false)
		in, err := refuse(ctx, errWaiting)
		if err != nil {
			return nil, err
		}
		in, end := context.WithCancel(in)
		time.AfterFunc(endsAfter, end) // its handler waits for the message
		return in, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(messageTime, func() { cancel(errNoMessage) })
	c := &otherCall{Context: ctx, others: o, origin: from, head: headOf(ctx), end: cancel}
	c.came = sync.OnceFunc(func() {
		late.Stop()
		c.stopWaiting()
		o.calls.Add(-1)
		from.conn.waits(-1)
	})
	from.conn.waits(1)
	c.wait()
	context.AfterFunc(ctx, c.came) // grpc cancels it at the end of the call, whatever becomes of that
	return c, nil
}

// wait counts what comes from now on as on its way, until stopWaiting.
func (c *otherCall) wait() {
	c.others.mu.Lock()
	if c.origin.conn != nil {
		c.origin.read = c.origin.conn.read.Load()
	}
	c.others.open[c] = 0
	c.others.mu.Unlock()
	c.others.look()
}

func (c *otherCall) stopWaiting() {
	c.others.mu.Lock()
	defer c.others.mu.Unlock()
	delete(c.others.open, c)
}

// any reports whether a call waits.
func (o *others) any() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.open) > 0
}

// onWay returns what is on its way.
func (o *others) onWay() onWay {
	far := onWay{}
	o.mu.Lock()
	defer o.mu.Unlock()
	for c := range o.open {
		far.add(c.origin, c.head)
		o.open[c]++
	}
	return far
}

// cut ends the calls of connections that two looks have found waiting.
func (o *others) cut(guilty map[*boundedConn]bool) {
	o.mu.Lock()
	var over []*otherCall
	for c, looks := range o.open {
		if looks > 1 && guilty[c.origin.conn] {
			over = append(over, c)
			delete(o.open, c)
		}
	}
	o.mu.Unlock()
	for _, c := range over {
		c.end(errOnWay)
		o.refused()
	}
}

// messageCame tells of the message of the call whose context it is given.
func messageCame(ctx context.Context) {
	if c, ok := ctx.Value(otherKey{}).(*otherCall); ok {
		c.came()
		c.origin.conn.receives(true)
	}
}

// receive receives a message of a stream, of which there may be several, by next.
func receive(ctx context.Context, next func() error) error {
	c, ok := ctx.Value(otherKey{}).(*otherCall)
	if !ok {
		return next()
	}
	c.wait()
	defer c.stopWaiting()
	defer c.came()
	err := next()
	if err == nil {
		c.origin.conn.receives(true)
	}
	return err
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
