package task

import (
	"context"
	"errors"
	"sync"
)

// ErrTwice is returned by a second Run, or by one after Close.
var ErrTwice = errors.New("task: Run was called twice, or after Close")

// Life is the life cycle of a backend that has something to run: it runs once, until its context ends or the backend is
// closed. Its methods are safe for concurrent use. The zero Life is ready to use.
type Life struct {
	mu     sync.Mutex
	cancel context.CancelFunc // of Run; nil before it
	ended  chan struct{}      // closed when Run has ended
	over   bool
}

// Run calls do with a context that ends with ctx or on [Life.End]. A second call, or one after End, returns [ErrTwice].
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

// End makes Run return, if it is running, and waits until it has. Run cannot be called afterwards.
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
