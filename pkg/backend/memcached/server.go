package memcached

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// pingEach is the interval of pings of a responding server.
const pingEach = 250 * time.Millisecond

// server is one memcached server. gomemcache pools its connections but opens any number of them, so a semaphore limits the exchanges in
// progress, each of which uses its own connection.
type server struct {
	backend *Backend
	name    string // as configured
	network string
	client  *memcache.Client
	breaker *remote.Breaker
	pace    remote.Pace   // of exchanges, by the number of slots in use
	slots   chan struct{} // the semaphore: MaxConns slots while run runs, none before and after
	waiting atomic.Int64  // number of shares that wait for a slot
}

func (b *Backend) newServer(name string) *server {
	s := &server{backend: b, name: name, network: "tcp", slots: make(chan struct{}, b.config.MaxConns)}
	if strings.Contains(name, "/") {
		s.network = "unix"
	}
	s.breaker = remote.NewBreaker(store, name, remote.BreakerConfig{OpTimeout: b.config.OpTimeout, Changed: b.config.Observer.Breaker})
	s.client = memcache.NewFromSelector(address{s})
	s.client.Timeout = max(remote.RoundTrip(b.config.OpTimeout), leastTimeout)
	s.client.MaxIdleConns = b.config.MaxIdleConns
	s.client.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return s.dial(context.WithoutCancel(ctx)) // the dialer has its own timeout
	}
	return s
}

// leastTimeout is the minimum timeout of a command, regardless of OpTimeout, because a busy process may read a reply this late.
const leastTimeout = 50 * time.Millisecond

// address is a [memcache.ServerSelector] that always selects one server, and the address of that server.
type address struct{ server *server }

func (a address) Network() string                     { return a.server.network }
func (a address) String() string                      { return a.server.name }
func (a address) PickServer(string) (net.Addr, error) { return a, nil }
func (a address) Each(f func(net.Addr) error) error   { return f(a) }

// dial opens a connection.
func (s *server) dial(ctx context.Context) (net.Conn, error) {
	c, err := s.backend.dialer.Dial(ctx, s.network, s.name)
	if err != nil {
		return nil, classify(s.name, err).NotSent()
	}
	s.backend.connected(1)
	return &conn{Conn: c, backend: s.backend}, nil
}

// conn is a connection in gomemcache's pool. It sends nothing on a connection that the server closed while it was idle.
type conn struct {
	net.Conn

	backend *Backend
	used    bool
}

// errStale is the error of a command that was not sent because the server had closed the idle connection.
var errStale = errors.New("the server has closed the connection")

func (c *conn) Write(b []byte) (int, error) {
	if c.used && remote.Alive(c.Conn) != nil {
		return 0, errStale
	}
	c.used = true
	return c.Conn.Write(b)
}

// Close closes the connection. gomemcache calls it once.
func (c *conn) Close() error {
	c.backend.connected(-1)
	return c.Conn.Close()
}

// retryStale calls f until it sends its commands. Only pooled connections can be stale, so the number of calls is bounded. gomemcache
// panics if a reply is a single line feed; retryStale returns that as an error.
func retryStale(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // a bug in gomemcache
			err = fmt.Errorf("reading what the server sent: %v", p)
		}
	}()
	for err = f(); errors.Is(err, errStale); err = f() {
	}
	return err
}

// acquire checks the breaker and waits, until ctx ends, for a slot for the first of the given number of shares of a call. It does not
// wait if the replies would probably take more than half of the remaining time. The caller must pass the outcome of the exchange to
// report, and then return the slot.
func (s *server) acquire(ctx context.Context, shares int) (report func(*remote.Error), e *remote.Error) {
	now := time.Now()
	deadline, _ := ctx.Deadline()
	if e = s.breaker.Admit(now, deadline.Sub(now)); e != nil {
		return nil, e
	}
	select {
	case <-s.slots:
	default:
		if remote.TooLate(s.wait(shares), deadline.Sub(now)) {
			return nil, store.Shed()
		}
		s.waiting.Add(int64(shares))
		defer s.waiting.Add(-int64(shares))
		select {
		case <-s.slots:
		case <-ctx.Done():
			return nil, store.Unsent(remote.Timeout, s.name, "no connection became free in time")
		}
	}
	if e = s.breaker.Down(); e == nil { // the server may have failed in the meantime
		report, e = s.breaker.Begin()
	}
	if e != nil {
		s.slots <- struct{}{}
	}
	return report, e
}

// wait estimates the time until the given number of shares get a slot, after those already waiting, and a reply.
func (s *server) wait(shares int) time.Duration {
	pace := s.pace.Estimate()
	each := pace.Base() + pace.Of(cap(s.slots))
	return each + each*time.Duration(int(s.waiting.Load())+shares)/time.Duration(cap(s.slots))
}

// run admits calls and pings the server until ctx ends. If a ping fails, calls fail immediately until the next one succeeds, which
// follows after a back-off. run returns when all exchanges have ended and all connections are closed.
func (s *server) run(ctx context.Context) {
	for range cap(s.slots) {
		s.slots <- struct{}{}
	}
	var backoff remote.Backoff
	for up := false; ctx.Err() == nil; {
		pause := pingEach
		<-s.slots
		err := retryStale(s.client.Ping)
		s.slots <- struct{}{}
		if err == nil {
			s.breaker.Connected()
			if !up {
				s.backend.config.Observer.Event(remote.Event{Kind: remote.EventConnected, Node: s.name})
			}
			backoff.Reset()
		} else if ctx.Err() == nil {
			e := classify(s.name, err)
			s.breaker.Disconnected(e.NotSent())
			s.backend.config.Observer.Event(remote.Event{Kind: remote.EventConnectFailed, Node: s.name, Err: e})
			pause = backoff.Next()
		}
		up = err == nil
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	for range cap(s.slots) { // acquires the last one when the last exchange ends
		<-s.slots
	}
	_ = s.client.Close() // the server may have closed some
}
