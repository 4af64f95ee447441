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
	patience  = 5 * time.Second  // with DNS
)

// server is one of the servers, with its connections.
type server struct {
	backend *Backend
	name    string // as in the configuration
	network string
	breaker *remote.Breaker
	pace    pace
	far     remote.Pace        // for one operation, by how many connections are in use
	trial   atomic.Bool        // while it is silent: a call finds out whether it answers again
	wake    chan struct{}      // tells run that something has changed
	cancel  context.CancelFunc // ends run; nil before it. Owned by whoever starts and stops servers

	mu      sync.Mutex
	idle    []*link // the most recently used last
	waiting []turn  // callers waiting for a link, first come first; closing a channel means that there is none to be had
	queued  int     // what they will ask for
	open    int     // links that are up, idle or in use
	dialing int
	dial    func() // opens another connection; nil before and after run
	stopped bool
	hushed  chan struct{} // closed when it becomes silent
	empty   chan struct{} // closed once it is stopped and open is 0
}

// turn is somebody who waits for a link, on which so many operations will be asked for one after the other.
type turn struct {
	link chan *link
	ops  int
}

func (b *Backend) newServer(name string) *server {
	s := &server{
		backend: b, name: name, network: "tcp",
		wake: make(chan struct{}, 1), hushed: make(chan struct{}), empty: make(chan struct{}),
	}
	if strings.Contains(name, "/") {
		s.network = "unix"
	}
	s.breaker = remote.NewBreaker(store, name, remote.BreakerConfig{
		OpTimeout: b.config.OpTimeout, Changed: b.config.Observer.Breaker, Silenced: s.silenced,
	})
	return s
}

// silenced is called when s becomes silent: callers who wait for an answer or for a connection are told. It is called
// again when that is over.
func (s *server) silenced(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if silent {
		close(s.hushed)
		s.turnAway()
	} else {
		s.hushed = make(chan struct{})
	}
}

// hush returns a channel that is closed when s becomes silent.
func (s *server) hush() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hushed
}

// admit returns why a call may not be sent, or nil. While s is silent one call at a time is a trial, which must end
// with s.trial unset.
func (s *server) admit(budget time.Duration) (trial bool, refused *remote.Error) {
	refused = s.breaker.Admit(time.Now(), budget)
	if refused == s.breaker.Mute() && !s.breaker.Shut() && s.trial.CompareAndSwap(false, true) {
		return true, nil
	}
	return false, refused
}

// acquire returns a link for exclusive use by so many operations, or why there is none. It waits for one no longer than
// budget, and not at all if they would probably not be answered in half of that.
func (s *server) acquire(ctx context.Context, ops int, budget time.Duration) (l *link, trial bool, refused *remote.Error) {
	trial, refused = s.admit(budget)
	if refused != nil {
		return nil, false, refused
	}
	l, refused = s.await(ctx, ops, budget)
	if trial && refused != nil {
		s.trial.Store(false)
	}
	return l, trial && refused == nil, refused
}

// await waits for a link.
func (s *server) await(ctx context.Context, ops int, budget time.Duration) (*link, *remote.Error) {
	l, wait, e := s.take(ops, budget)
	if l != nil || e != nil {
		return l, e
	}
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
	return nil, store.Unsent(remote.Timeout, s.name, "no connection was free in time")
}

// wait returns how long so many operations would probably wait for their answers if they had to wait for a link: those that
// wait already come first, and the links that are in use share the server. s.mu must be held.
func (s *server) wait(ops int) time.Duration { return s.pace.of(s.queued + s.open*ops) }

// waits returns how long an operation that comes now would probably wait.
func (s *server) waits() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.idle) > 0 || s.open < s.backend.config.MaxConns {
		return 0
	}
	return s.wait(1)
}

// take returns an idle link, or a channel on which to wait for one.
func (s *server) take(ops int, budget time.Duration) (*link, chan *link, *remote.Error) {
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
	if s.open >= s.backend.config.MaxConns && remote.Hopeless(s.wait(ops), budget) {
		return nil, nil, errShed
	}
	wait := make(chan *link, 1)
	s.waiting = append(s.waiting, turn{wait, ops})
	s.queued += ops
	s.grow()
	return nil, wait, nil
}

// leave ends the wait of a caller that got nothing in time; a link that came at the last moment is released.
func (s *server) leave(wait chan *link) {
	s.mu.Lock()
	i := slices.IndexFunc(s.waiting, func(t turn) bool { return t.link == wait })
	if i >= 0 {
		s.call(i)
	}
	s.mu.Unlock()
	if i < 0 {
		if l, ok := <-wait; ok {
			s.release(l)
		}
	}
}

// call takes somebody out of the line. s.mu must be held.
func (s *server) call(i int) turn {
	t := s.waiting[i]
	s.queued -= t.ops
	s.waiting = slices.Delete(s.waiting, i, i+1)
	return t
}

// none returns why there is no connection.
func (s *server) none() *remote.Error {
	if e := s.breaker.Down(); e != nil {
		return e
	}
	if s.breaker.Silence.Silent() {
		return s.breaker.Mute()
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

// answered notes that the server has answered so many operations since begun.
func (s *server) answered(begun time.Time, ops int) {
	s.mu.Lock()
	busy, used := len(s.waiting) > 0, s.open-len(s.idle)
	s.mu.Unlock()
	now := time.Now()
	s.pace.done(begun, now, ops, busy)
	s.far.Done(begun, begun.Add(now.Sub(begun)/time.Duration(max(ops, 1))), used, false)
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
		s.call(0).link <- l
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
	select {
	case <-ctx.Done():
	case <-time.After(d):
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
	s.breaker.Connected()
	s.hand(l)
	s.mu.Unlock()
	if first {
		s.backend.config.Observer.Event(remote.Event{Kind: remote.EventConnected, Node: s.name})
	}
	return true
}

func (s *server) openLink(ctx context.Context) (*link, error) {
	c := &s.backend.config
	nc, err := s.backend.dialer.Dial(ctx, s.network, s.name)
	if err != nil {
		return nil, err
	}
	l := newLink(s.name, nc, c.Command)
	if err := l.ping(time.Now().Add(c.DialTimeout)); err != nil {
		_ = nc.Close() // it may be closed already
		return nil, err
	}
	s.breaker.Silence.Hear()
	l.conn.silence = s.breaker.Silence
	return l, nil
}

// unconnected handles a failure to connect: if no connection is left it turns away everybody who waits.
func (s *server) unconnected(ctx context.Context, err error) {
	e := classify(s.name, err)
	s.mu.Lock()
	s.dialing--
	if s.open+s.dialing == 0 {
		s.breaker.Disconnected(e.NotSent())
		s.turnAway()
		s.poke()
	}
	s.mu.Unlock()
	if ctx.Err() == nil {
		s.backend.config.Observer.Event(remote.Event{Kind: remote.EventConnectFailed, Node: s.name, Err: e})
	}
}

// turnAway fails everybody who waits. s.mu must be held.
func (s *server) turnAway() {
	for _, t := range s.waiting {
		close(t.link)
	}
	s.waiting, s.queued = nil, 0
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
