package xds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// following is the state of the current stream.
type following struct {
	*Client

	responses  chan response
	out        outbox
	unanswered []response
	accepted   string // version of the last valid response
}

// run accepts, compiles, and answers responses at the permitted rate, until ctx ends or the stream fails.
func (f *following) run(ctx context.Context, failed <-chan error) error {
	due, quiet := time.NewTimer(time.Hour), time.NewTimer(silence)
	due.Stop()
	defer due.Stop()
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case done := <-f.Reloads:
			f.waiting = append(f.waiting, done)
			return errReload
		case <-quiet.C:
			f.log.Warn("the control plane has sent nothing yet; does it know this node?", "server", f.config.Server, "node", f.config.NodeID)
		case err := <-failed:
			if f.dirty && f.pause(ctx) { // the newest set is useful even without a stream to answer on
				_ = f.apply() // the outcome is reported elsewhere
			}
			return err
		case r := <-f.responses:
			quiet.Stop()
			if err := f.accept(r); err != nil {
				return err
			}
			due.Reset(time.Until(f.due()))
		case <-due.C:
			f.settle()
		}
	}
}

// accept accepts a response. Only the last of several state-of-the-world responses needs an answer.
func (f *following) accept(r response) error {
	if !f.connected.Swap(true) {
		f.log.Info("following the control plane", "server", f.config.Server, "node", f.config.NodeID)
		f.config.Hooks.Event(EventConnected)
	}
	if len(f.unanswered) > 0 {
		f.config.Hooks.Event(EventCoalesced)
	}
	if r.complete {
		f.unanswered = nil
	}
	f.unanswered = append(f.unanswered, r)
	if r.typeURL != TypeURL {
		return nil
	}
	err := f.held.merge(r)
	f.dirty = err == nil // an error clears held, which must not count as an empty set
	return err
}

// settle decides and answers the accepted responses.
func (f *following) settle() {
	var problem string
	if f.dirty {
		problem = f.apply()
	}
	for _, r := range f.unanswered {
		why := problem
		if r.typeURL != TypeURL {
			why = f.foreign(r)
		}
		if why == "" {
			f.accepted = r.version
		}
		f.out.put(answer{nonce: r.nonce, problem: why, accepted: f.accepted}, r.complete)
	}
	f.unanswered = nil
	f.tried()
	f.reloaded(nil)
}

// pause waits until the next set may be compiled. It returns false if ctx ends first.
func (c *Client) pause(ctx context.Context) bool {
	select {
	case <-time.After(time.Until(c.notBefore)):
		return true
	case <-ctx.Done():
		return false
	}
}

// read receives responses until the stream or ctx ends.
func read(ctx context.Context, s session, to chan<- response) error {
	for {
		r, err := s.receive()
		switch {
		case errors.Is(err, io.EOF):
			return errors.New("the control plane ended the stream")
		case err != nil:
			return err
		}
		select {
		case to <- r:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// maxAnswers is the maximum number of queued answers for a control plane that does not read them.
const maxAnswers = 1000

// outbox queues answers, so that a control plane that does not read never blocks the client.
type outbox chan answer

func newOutbox() outbox { return make(outbox, maxAnswers) }

// put adds an answer. If last is set, it replaces queued answers. Only one goroutine may call put.
func (o outbox) put(a answer, last bool) {
	for last && len(o) > 0 || len(o) == cap(o) {
		select {
		case <-o:
		default: // it was just sent
		}
	}
	o <- a
}

// send sends answers until the stream or ctx ends. It does not report the end of the stream, because read has a better
// error.
func (o outbox) send(ctx context.Context, s session) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case a := <-o:
			if err := s.answer(a); errors.Is(err, io.EOF) {
				<-ctx.Done()
				return ctx.Err()
			} else if err != nil {
				return fmt.Errorf("answering the control plane: %w", err)
			}
		}
	}
}
