package xds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// following is the state of the stream that is followed.
type following struct {
	*Client

	responses  chan response
	out        outbox
	unanswered []response
	accepted   string // the version of the last response that was not invalid
}

// run accepts responses, and compiles and answers them as often as is allowed, until ctx ends or the stream has failed.
func (f *following) run(ctx context.Context, failed <-chan error) error {
	due, quiet := time.NewTimer(time.Hour), time.NewTimer(silence)
	due.Stop()
	defer due.Stop()
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case done := <-f.reload:
			f.waiting = append(f.waiting, done)
			return errReload
		case <-quiet.C:
			f.log.Warn("the control plane has sent nothing yet; does it know this node?", "server", f.config.Server, "node", f.config.NodeID)
		case err := <-failed:
			if f.dirty && f.pause(ctx) { // the newest set is wanted even if nothing waits for the answer
				_ = f.apply() // the outcome of every set is reported elsewhere
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

// accept accepts a response. Of several state-of-the-world responses only the last one has to be answered.
func (f *following) accept(r response) error {
	if !f.connected.Swap(true) {
		f.log.Info("following the control plane", "server", f.config.Server, "node", f.config.NodeID)
		f.config.Hooks.Event(EventConnected)
	}
	if len(f.unanswered) > 0 {
		f.config.Hooks.Event(EventCoalesced)
	}
	if r.whole {
		f.unanswered = nil
	}
	f.unanswered = append(f.unanswered, r)
	if r.typeURL != TypeURL {
		return nil
	}
	err := f.held.merge(r)
	f.dirty = err == nil // after an error nothing is held, which must not be taken for an empty set
	return err
}

// settle decides on the responses that have come, and answers them.
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
		f.out.put(answer{nonce: r.nonce, problem: why, accepted: f.accepted}, r.whole)
	}
	f.unanswered = nil
	f.tried()
	f.reloaded(nil)
}

// pause waits until the next set may be compiled. It returns false if ctx ends before that.
func (c *Client) pause(ctx context.Context) bool {
	select {
	case <-time.After(time.Until(c.notBefore)):
		return true
	case <-ctx.Done():
		return false
	}
}

// read passes on responses until the stream or ctx ends.
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

// maxAnswers is the maximum number of answers kept for a control plane that does not read them.
const maxAnswers = 1000

// outbox holds answers until they are sent, so that a control plane that sends but does not read blocks nothing.
type outbox chan answer

func newOutbox() outbox { return make(outbox, maxAnswers) }

// put adds an answer. If last is true, it replaces those that have not been sent yet. Only one goroutine may put.
func (o outbox) put(a answer, last bool) {
	for last && len(o) > 0 || len(o) == cap(o) {
		select {
		case <-o:
		default: // it has just been sent
		}
	}
	o <- a
}

// send sends answers until the stream or ctx ends. It does not report the end of the stream, since read has the better
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
