package task

import (
	"context"
	"errors"
	"sync"
)

// ErrTwice is returned by a second call of Run, or by a call after End.
var ErrTwice = errors.New("task: Run was called twice, or after Close")

// Life is the life cycle of a backend with a background task. The task runs once, until its context ends or the backend is closed. The
// methods are safe for concurrent use. The zero Life is ready for use.
type Life struct {
	mu     sync.Mutex
	cancel context.CancelFunc // of Run; nil before Run
	ended  chan struct{}      // closed after Run
	over   bool
}

// Run calls do with a context that ends with ctx or on [Life.End]. A second call, or a call after End, returns [ErrTwice].
func (l *Life) Run(ctx context.Context, do func(context.Context)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.mu.Lock()
	if l.cancel != nil || l.over {
		l.mu.Unlock()
		return ErrTwice
	}
	l.cancel, l.ended = cancel, make(chan struct{})
	l.mu.Unlock()
	defer close(l.ended)
	do(ctx)
	return nil
}

// End stops Run, if it is running, and waits for it to return. Run cannot be called afterwards.
func (l *Life) End() {
	l.mu.Lock()
	l.over = true
	cancel, ended := l.cancel, l.ended
	l.mu.Unlock()
	if cancel != nil {
		cancel()
		<-ended
	}
}
