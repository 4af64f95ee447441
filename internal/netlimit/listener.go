// Package netlimit bounds what the clients of a port may take: connections, calls whose message has not come, and the
// bytes of those. Every bound ends with a client: whoever takes most gives way, and others are served.
//
// It knows of connections and of calls, and nothing of gRPC. A server of gRPC finds the connection of a call by its local
// address: see [Of].
package netlimit

import (
	"cmp"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/admission"
)

// MaxConnections is how many connections a listener may have, unless [Connections] says otherwise.
const MaxConnections = 10_000

const (
	idleAfter = time.Second            // without a byte from its client, when no call of ShouldRateLimit can still be open
	askAgain  = 100 * time.Millisecond // whether a connection has become idle, while a new one waits for that
	calmAt    = 0.9                    // of a bound, below which it is no longer reached
)

// Config bounds the connections of a listener. Its functions may be nil. They must not use the listener.
type Config struct {
	Max        int // 0 means MaxConnections
	PerAddress int // of one IP address; 0 means no limit

	// Reached is called when a bound is reached, with a sentence about it, and with "" when none is any more.
	Reached func(what string)
	// Closed is called for each connection that is closed for others: because it was idle, or because its address had too
	// many (address).
	Closed func(reason string)
}

// Listener is a listener whose connections are bounded. Beyond a bound the connection that has been idle for the longest is
// closed for the new one. If none is idle, the new one is closed if it is its address that has too many, and waits otherwise.
type Listener struct {
	net.Listener

	config Config
	begun  time.Time
	freed  chan struct{}
	closed chan struct{}
	close  func()

	mu      sync.Mutex
	open    int
	full    bool
	said    string
	clients map[string]*clients
	crowded int // clients that are full
}

// clients are the connections of one address.
type clients struct {
	conns []*Conn
	full  bool
}

// Conn is a connection of a [Listener].
type Conn struct {
	net.Conn

	// Source is what the admission of calls knows of the connection.
	Source admission.Source

	listener *Listener
	address  string       // "" for a unix socket
	index    int          // among those of its address
	gone     bool         // no longer counted
	last     atomic.Int64 // when something was last read, since the listener began
	read     atomic.Int64 // bytes
	calls    calls        // whose message has not come
}

// localAddr is the local address of a connection, by which [Of] finds it: grpc tells calls nothing else of theirs.
type localAddr struct {
	net.Addr

	conn *Conn
}

// Of returns the connection whose local address that is; nil if it is none of a [Listener].
func Of(local net.Addr) *Conn {
	a, _ := local.(localAddr)
	return a.conn
}

// Listen bounds the connections of l.
func Listen(l net.Listener, c Config) *Listener {
	c.Max = cmp.Or(c.Max, MaxConnections)
	if c.Reached == nil {
		c.Reached = func(string) {}
	}
	if c.Closed == nil {
		c.Closed = func(string) {}
	}
	b := &Listener{
		Listener: l, config: c, begun: time.Now(),
		freed: make(chan struct{}, 1), closed: make(chan struct{}), clients: map[string]*clients{},
	}
	b.close = sync.OnceFunc(func() { close(b.closed) })
	return b
}

// Open returns how many connections are open.
func (b *Listener) Open() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// Close implements net.Listener.
func (b *Listener) Close() error {
	b.close()
	return b.Listener.Close()
}

// Accept implements net.Listener.
func (b *Listener) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		conn := &Conn{Conn: c, listener: b, address: addressOf(c)}
		conn.last.Store(b.now())
		if b.admit(conn) {
			return conn, nil
		}
		_ = c.Close() // it has not been used
	}
}

// addressOf returns the IP address of a client, or "" if it has none.
func addressOf(c net.Conn) string {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap().WithZone("").String()
	}
	return ""
}

func (b *Listener) now() int64 { return int64(time.Since(b.begun)) }

// admit waits until there is room for c, which it may make. It reports false if c has to be closed.
func (b *Listener) admit(c *Conn) bool {
	for {
		victim, verdict := b.try(c)
		switch {
		case verdict == admitted:
			return true
		case victim != nil:
			b.config.Closed("idle")
			_ = victim.Close() // its client is told by that
			continue
		case verdict == crowded:
			b.config.Closed("address")
			return false
		}
		select {
		case <-b.freed:
		case <-time.After(askAgain):
		case <-b.closed:
			return false
		}
	}
}

type verdict uint8

const (
	admitted verdict = iota
	crowded          // the address has too many
	full             // all have
)

// try counts c if there is room. Otherwise it returns the connection to be closed for it, if there is one.
func (b *Listener) try(c *Conn) (victim *Conn, v verdict) {
	b.mu.Lock()
	defer b.mu.Unlock()
	of := b.clients[c.address]
	if of == nil {
		of = new(clients)
	}
	switch {
	case c.address != "" && b.config.PerAddress > 0 && len(of.conns) >= b.config.PerAddress:
		if !of.full {
			of.full = true
			b.crowded++
		}
		v, victim = crowded, b.idlest(nil, of)
		b.say(c.address)
	case b.open >= b.config.Max:
		b.full, v = true, full
		for _, of := range b.clients {
			victim = b.idlest(victim, of)
		}
		b.say("")
	default:
		b.clients[c.address] = of
		c.index, of.conns = len(of.conns), append(of.conns, c)
		b.open++
	}
	return victim, v
}

// idlest returns the connection that has been idle for the longest, of those of one address and another one; nil if none is.
func (b *Listener) idlest(than *Conn, of *clients) *Conn {
	oldest := b.now() - int64(idleAfter)
	if than != nil {
		oldest = than.last.Load()
	}
	for _, c := range of.conns {
		if last := c.last.Load(); last <= oldest {
			than, oldest = c, last
		}
	}
	return than
}

// remove stops counting c.
func (b *Listener) remove(c *Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.gone {
		return
	}
	c.gone = true
	of := b.clients[c.address]
	end := len(of.conns) - 1
	of.conns[c.index] = of.conns[end]
	of.conns[c.index].index = c.index
	of.conns[end] = nil
	of.conns = of.conns[:end]
	b.open--
	if of.full && float64(end) < calmAt*float64(b.config.PerAddress) {
		of.full = false
		b.crowded--
	}
	if end == 0 {
		delete(b.clients, c.address)
	}
	b.full = b.full && float64(b.open) >= calmAt*float64(b.config.Max)
	b.say("")
	select {
	case b.freed <- struct{}{}:
	default:
	}
}

// say calls Reached if there is something new; address has just been found to have too many connections.
func (b *Listener) say(address string) {
	what := b.said
	switch {
	case b.full:
		what = fmt.Sprintf("%d connections are open, the most there may be: those that have been idle for the longest are closed for new ones", b.config.Max)
	case b.crowded == 0:
		what = ""
	case address != "":
		what = fmt.Sprintf("%s has %d connections, the most that one address may have (GRPC_ADDRESS_SHARE)", address, b.config.PerAddress)
	}
	if what != b.said {
		b.said = what
		b.config.Reached(what)
	}
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.last.Store(c.listener.now())
		c.read.Add(int64(n))
	}
	return n, err
}

// Silent reports whether the client has sent nothing so far.
func (c *Conn) Silent() bool { return c.read.Load() == 0 }

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return localAddr{c.Conn.LocalAddr(), c} }

// Close implements net.Conn.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.listener.remove(c)
	c.calls.end()
	return err
}

// each calls f with each open connection, without the lock.
func (b *Listener) each(f func(*Conn)) {
	b.mu.Lock()
	all := make([]*Conn, 0, b.open)
	for _, of := range b.clients {
		all = append(all, of.conns...)
	}
	b.mu.Unlock()
	for _, c := range all {
		f(c)
	}
}
