package memcached

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// Times of a server's connections.
const (
	lookEach  = 250 * time.Millisecond
	idleAfter = 10 * time.Second // connections beyond MaxIdleConns are closed after being unused for this long
	patience  = 5 * time.Second  // of an exchange if neither the configuration nor a caller limits it
)

// server is one of the servers, with its connections.
type server struct {
	backend *Backend
	name    string // as in the configuration
	network string
	breaker *breaker
	down    atomic.Pointer[Error] // why no connection is up; nil while one is, or before the first attempt
	heard   atomic.Int64          // when it last answered, in ns since the epoch
	wake    chan struct{}         // tells run that something has changed
	cancel  context.CancelFunc    // ends run; nil before it. Owned by whoever starts and stops servers

	mu      sync.Mutex
	idle    []*link      // the most recently used last
	waiting []chan *link // callers waiting for a link, first come first; closing a channel means that there is none to be had
	open    int          // links that are up, idle or in use
	dialing int
	dial    func() // opens another connection; nil before and after run
	stopped bool
	empty   chan struct{} // closed once it is stopped and open is 0
}

func (b *Backend) newServer(name string) *server {
	s := &server{backend: b, name: name, network: "tcp", wake: make(chan struct{}, 1), empty: make(chan struct{})}
	if strings.Contains(name, "/") {
		s.network = "unix"
	}
	s.breaker = newBreaker(name, b.config.Observer.Breaker)
	if f := b.config.Observer.Breaker; f != nil {
		f(name, remote.Closed) // so that it is known; it may have been gone
	}
	return s
}

// acquire returns a link for exclusive use, or why there is none. It waits for one no longer than budget.
func (s *server) acquire(ctx context.Context, budget time.Duration) (*link, *Error) {
	if e := s.down.Load(); e != nil {
		return nil, e
	}
	if e := s.breaker.Admit(time.Now(), budget); e != nil {
		return nil, e
	}
	l, wait, e := s.take()
	if l != nil || e != nil {
		return l, e
	}
	begun := time.Now()
	enough := time.NewTimer(budget)
	defer enough.Stop()
	select {
	case l, ok := <-wait:
		if !ok {
			return nil, s.none()
		}
		return l, nil
	case <-enough.C:
	case <-ctx.Done():
	}
	s.leave(wait)
	late := &Error{Class: ClassTimeout, Node: s.name, Unsent: true, text: "no connection was free in time"}
	if s.connected() && s.silent(begun, begun.Add(budget), budget) {
		if tell, refused := s.breaker.Begin(); refused == nil {
			tell(late) // all connections are taken by others who wait in vain
		}
	}
	return nil, late
}

// connected reports whether a connection is up.
func (s *server) connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open > 0
}

// silent reports whether a caller that waited from begun until its time was up says something about the server by
// giving up. It does not if the server has answered others in the meantime, the time was very short, the caller was
// cancelled early, or this process stalled.
func (s *server) silent(begun, ends time.Time, budget time.Duration) bool {
	late := time.Since(ends)
	return budget >= shortest && late >= 0 && late < budget && s.heard.Load() < begun.UnixNano()
}

// take returns an idle link, or a channel on which to wait for one.
func (s *server) take() (*link, chan *link, *Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil, nil, errStopped
	}
	for len(s.idle) > 0 {
		l := s.idle[len(s.idle)-1]
		s.idle = s.idle[:len(s.idle)-1]
		if remote.Alive(l.conn.Conn) == nil {
			return l, nil, nil
		}
		s.discard(l)
	}
	wait := make(chan *link, 1)
	s.waiting = append(s.waiting, wait)
	s.grow()
	return nil, wait, nil
}

// leave ends the wait of a caller that got nothing in time; a link that came at the last moment is released.
func (s *server) leave(wait chan *link) {
	s.mu.Lock()
	i := slices.Index(s.waiting, wait)
	if i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 {
		if l, ok := <-wait; ok {
			s.release(l)
		}
	}
}

// none returns why there is no connection.
func (s *server) none() *Error {
	if e := s.down.Load(); e != nil {
		return e
	}
	return errStopped
}

// grow opens connections for those who wait. s.mu must be held.
func (s *server) grow() {
	for s.dial != nil && s.dialing < len(s.waiting) && s.open+s.dialing < s.backend.config.MaxConns {
		s.dialing++
		s.dial()
	}
}

// release takes a link back.
func (s *server) release(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.broken() {
		s.discard(l)
		s.sweep() // where one is broken others may be too
		s.grow()
		return
	}
	l.used = time.Now()
	s.hand(l)
}

// hand gives l to whoever waits for a link, or keeps it as idle. s.mu must be held.
func (s *server) hand(l *link) {
	switch {
	case s.stopped:
		s.discard(l)
	case len(s.waiting) > 0:
		s.waiting[0] <- l
		s.waiting = slices.Delete(s.waiting, 0, 1)
	default:
		s.idle = append(s.idle, l)
	}
}

// discard closes l, which must not be in use. s.mu must be held.
func (s *server) discard(l *link) {
	_ = l.conn.Conn.Close() // it may be closed already
	s.open--
	s.backend.connected(-1)
	if s.open == 0 {
		s.poke()
		if s.stopped {
			close(s.empty)
		}
	}
}

func (s *server) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// sweep closes idle links that are dead, and surplus ones that have been unused for long. s.mu must be held.
func (s *server) sweep() {
	now := time.Now()
	spare := len(s.idle) - max(s.backend.config.MaxIdleConns, 1) // the first ones are the least recently used
	kept := s.idle[:0]
	for i, l := range s.idle {
		if i < spare && now.Sub(l.used) > idleAfter || remote.Alive(l.conn.Conn) != nil {
			s.discard(l)
			continue
		}
		kept = append(kept, l)
	}
	clear(s.idle[len(kept):])
	s.idle = kept
}

// run keeps at least one connection up until ctx ends. It returns when the last one is closed.
func (s *server) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	s.mu.Lock()
	s.dial = func() { wg.Go(func() { s.connect(ctx) }) }
	s.grow()
	s.mu.Unlock()
	var wait remote.Backoff
	for ctx.Err() == nil {
		if !s.missing() {
			pause(ctx, lookEach, s.wake)
		} else if s.connect(ctx) {
			wait.Reset()
		} else {
			pause(ctx, wait.Next(), nil)
		}
	}
	s.stop()
}

// missing checks the idle links, and reports whether no link is up or being opened. If so the caller has to connect.
func (s *server) missing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	if s.open+s.dialing > 0 {
		return false
	}
	s.dialing++
	return true
}

// pause waits for d, or until ctx ends or wake receives.
func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-wake:
	}
}

// connect opens a connection, waits until the server answers on it, and reports whether it did. The caller must have
// counted it in s.dialing.
func (s *server) connect(ctx context.Context) bool {
	l, err := s.openLink(ctx)
	if err != nil {
		s.unconnected(ctx, err)
		return false
	}
	s.mu.Lock()
	s.dialing--
	first := s.open == 0
	if s.stopped {
		_ = l.conn.Close() // nobody wants it any more
		s.mu.Unlock()
		return false
	}
	s.open++
	s.backend.connected(1)
	s.down.Store(nil)
	s.breaker.Connected(true)
	s.hand(l)
	s.mu.Unlock()
	if first {
		s.backend.event(Event{Kind: EventConnected, Node: s.name})
	}
	return true
}

func (s *server) openLink(ctx context.Context) (*link, error) {
	c := &s.backend.config
	nc, err := s.backend.dialer.Dial(ctx, s.network, s.name)
	if err != nil {
		return nil, err
	}
	l := newLink(s.name, nc, c.Observer.Command)
	if err := l.ping(time.Now().Add(c.DialTimeout)); err != nil {
		_ = nc.Close() // it may be closed already
		return nil, err
	}
	return l, nil
}

// unconnected handles a failure to connect: if no connection is left it turns away everybody who waits.
func (s *server) unconnected(ctx context.Context, err error) {
	e := classify(s.name, err)
	s.mu.Lock()
	s.dialing--
	if s.open+s.dialing == 0 {
		s.down.Store(&Error{Class: e.Class, Node: s.name, Unsent: true, text: e.text})
		s.breaker.Connected(false)
		s.turnAway()
		s.poke()
	}
	s.mu.Unlock()
	if ctx.Err() == nil {
		s.backend.event(Event{Kind: EventConnectFailed, Node: s.name, Err: e})
	}
}

// turnAway fails everybody who waits. s.mu must be held.
func (s *server) turnAway() {
	for _, wait := range s.waiting {
		close(wait)
	}
	s.waiting = nil
}

// stop closes idle connections, and waits for those in use.
func (s *server) stop() {
	s.mu.Lock()
	s.stopped, s.dial = true, nil
	s.turnAway()
	busy := s.open > 0
	idle := s.idle
	s.idle = nil
	for _, l := range idle {
		s.discard(l)
	}
	s.mu.Unlock()
	if busy {
		<-s.empty
	}
}
