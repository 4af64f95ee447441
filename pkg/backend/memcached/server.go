package memcached

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// Times of a server's connections.
const (
	lookEach  = 250 * time.Millisecond
	idleAfter = 10 * time.Second // connections beyond MaxIdleConns are closed after being unused for this long
)

// server is one of the servers, with a client of its own. A semaphore bounds how many commands are sent to it at once, each over
// a connection of its own.
type server struct {
	backend *Backend
	name    string // as in the configuration
	network string
	client  *memcache.Client
	breaker *remote.Breaker
	pace    remote.Pace        // by how many slots are in use
	slots   chan struct{}      // the semaphore: MaxConns of them while run runs, none before and after it
	waiting atomic.Int64       // shares of calls that wait for a slot
	wake    chan struct{}      // tells run that no connection is left
	ended   chan struct{}      // closed when run ends
	cancel  context.CancelFunc // ends run; nil before it. Owned by the goroutine that starts and stops servers

	mu     sync.Mutex
	conns  map[*conn]bool // those that are up
	met    bool           // the server has answered since one of them has been up
	hushed chan struct{}  // closed when the server becomes silent
}

func (b *Backend) newServer(name string) *server {
	s := &server{
		backend: b, name: name, network: "tcp", slots: make(chan struct{}, b.config.MaxConns), wake: make(chan struct{}, 1),
		ended: make(chan struct{}), conns: make(map[*conn]bool), hushed: make(chan struct{}),
	}
	if strings.Contains(name, "/") {
		s.network = "unix"
	}
	s.client = s.newClient()
	s.breaker = remote.NewBreaker(store, name, remote.BreakerConfig{
		OpTimeout: b.config.OpTimeout, Changed: b.config.Observer.Breaker, Silenced: s.silenced,
	})
	return s
}

// silenced is called when s becomes silent, so that callers do not go on waiting, and again when that is over.
func (s *server) silenced(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if silent {
		close(s.hushed)
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

// acquire takes a slot for the first of so many shares of a call, or returns why there is none. It waits for one no longer than
// budget, and not at all if the answers would probably take more than half of that.
func (s *server) acquire(ctx context.Context, shares int, budget time.Duration) *remote.Error {
	if e := s.breaker.Admit(time.Now(), budget); e != nil {
		return e
	}
	select {
	case <-s.slots:
		return nil
	default:
	}
	if remote.TooLate(s.wait(shares), budget) {
		return errShed
	}
	s.waiting.Add(int64(shares))
	defer s.waiting.Add(-int64(shares))
	enough := time.NewTimer(budget)
	defer enough.Stop()
	select {
	case <-s.slots:
		return nil
	case <-s.hush():
		return s.breaker.Mute()
	case <-s.ended:
		return errStopped
	case <-enough.C:
	case <-ctx.Done():
	}
	return store.Unsent(remote.Timeout, s.name, "no connection was free in time")
}

// inUse returns how many slots are.
func (s *server) inUse() int { return cap(s.slots) - len(s.slots) }

// wait returns how long it would probably take to get so many slots after those that wait already, and then an answer.
func (s *server) wait(shares int) time.Duration {
	each := s.pace.Base() + s.pace.Of(cap(s.slots))
	return each + each*time.Duration(int(s.waiting.Load())+shares)/time.Duration(cap(s.slots))
}

// waits returns how long an operation that comes now would probably wait.
func (s *server) waits() time.Duration {
	if len(s.slots) > 0 {
		return 0
	}
	return s.wait(1)
}

// dial opens a connection.
func (s *server) dial(ctx context.Context) (net.Conn, error) {
	nc, err := s.backend.dialer.Dial(ctx, s.network, s.name)
	if err != nil {
		return nil, classify(s.name, err).NotSent()
	}
	c := &conn{Conn: nc, server: s, used: time.Now(), fresh: true}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = true
	s.backend.connected(1)
	return c, nil
}

// use reports whether something may be sent on c: not if it has ended since it was used.
func (s *server) use(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.conns[c] || !c.fresh && remote.Alive(c.Conn) != nil {
		return false
	}
	c.used, c.fresh = time.Now(), false
	return true
}

// drop closes c. s.mu must be held.
func (s *server) drop(c *conn) {
	if !s.conns[c] {
		return
	}
	delete(s.conns, c)
	_ = c.Conn.Close() // the other side may have closed it
	s.backend.connected(-1)
	if len(s.conns) == 0 {
		s.met = false
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// well drops connections that are dead, and surplus ones that have been unused for long, and reports whether the server has
// answered on one that is up, and is not silent.
func (s *server) well() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	unused := time.Now().Add(-idleAfter - s.client.Timeout)
	for c := range s.conns {
		if len(s.conns) > max(s.backend.config.MaxIdleConns, 1) && c.used.Before(unused) || remote.Alive(c.Conn) != nil {
			s.drop(c)
		}
	}
	return s.met && !s.breaker.Silence.Silent()
}

// run lets calls through, and sees to it that at least one connection is up, until ctx ends. It returns when the last one is
// closed.
func (s *server) run(ctx context.Context) {
	for range cap(s.slots) {
		s.slots <- struct{}{}
	}
	var wait remote.Backoff
	for ctx.Err() == nil {
		switch {
		case s.well():
			pause(ctx, lookEach, s.wake)
		case s.probe(ctx):
			wait.Reset()
		default:
			pause(ctx, wait.Next(), nil)
		}
	}
	close(s.ended)
	for range cap(s.slots) { // the last of them when the last exchange has ended
		<-s.slots
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		s.drop(c)
	}
}

// probe asks the server for its version, reports whether it answers, and tells the breaker.
func (s *server) probe(ctx context.Context) bool {
	select {
	case <-s.slots:
	case <-ctx.Done():
		return false
	}
	err := again(s.client.Ping)
	s.slots <- struct{}{}
	s.mu.Lock()
	before := s.met
	if err == nil {
		s.met = len(s.conns) > 0
		s.breaker.Connected()
	} else if len(s.conns) == 0 {
		s.breaker.Disconnected(classify(s.name, err).NotSent())
	}
	s.mu.Unlock()
	switch {
	case err != nil && ctx.Err() == nil:
		s.backend.config.Observer.Event(remote.Event{Kind: remote.EventConnectFailed, Node: s.name, Err: classify(s.name, err)})
	case err == nil && !before:
		s.backend.config.Observer.Event(remote.Event{Kind: remote.EventConnected, Node: s.name})
	}
	return err == nil
}

// pause waits for d, or until ctx ends or wake receives.
func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	case <-wake:
	}
}
