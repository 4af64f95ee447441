package rls

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/overload"
)

// MaxConnections is how many connections a listener may have, unless [Connections] says otherwise.
const MaxConnections = 10_000

const (
	idleAfter = time.Second // without a byte from its client, when no call of ShouldRateLimit can still be open
	askAgain  = 100 * time.Millisecond
	blocked   = time.Millisecond // that a read takes which finds nothing at first
	calmAt    = 0.9              // of a bound, below which it is no longer reached
)

// Connections bounds the connections of a listener. Its functions may be nil. They must not use the listener.
type Connections struct {
	Max        int // 0 means MaxConnections
	PerAddress int // of one IP address; 0 means no limit

	// Reached is called when a bound is reached, with a sentence about it, and with "" when none is any more.
	Reached func(what string)
	// Closed is called for each connection that is closed for others: because it was idle, or because its address had too
	// many (address).
	Closed func(reason string)
}

// Bounded is a listener whose connections are bounded. Beyond a bound the connection that has been idle for the longest is
// closed for the new one. If none is idle, the new one is closed if it is its address that has too many, and waits otherwise.
type Bounded struct {
	net.Listener

	config Connections
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
	conns []*boundedConn
	full  bool
}

// boundedConn is a connection of a Bounded.
type boundedConn struct {
	net.Conn

	bounded  *Bounded
	address  string // "" for a unix socket
	index    int    // among those of its address
	gone     bool   // no longer counted
	last     atomic.Int64
	read     atomic.Int64 // bytes
	streams  atomic.Int64 // open; of other methods than ShouldRateLimit
	waiting  atomic.Int64 // calls whose message has not been received
	received atomic.Bool  // that of a call, and since then none has waited for long or in vain, or was refused for want of room
	client   overload.Client
	peek     peek  // for what reads it alone, as full is
	full     bool  // there was no room for more when it was last read
	filled   int64 // when that was first so without a break
}

// localAddr is an address of this side of a connection by which the connection is known: grpc tells calls nothing else of it.
type localAddr struct {
	net.Addr

	conn *boundedConn
}

// Bound bounds the connections of l.
func Bound(l net.Listener, c Connections) *Bounded {
	c.Max = cmp.Or(c.Max, MaxConnections)
	if c.Reached == nil {
		c.Reached = func(string) {}
	}
	if c.Closed == nil {
		c.Closed = func(string) {}
	}
	b := &Bounded{
		Listener: l, config: c, begun: time.Now(),
		freed: make(chan struct{}, 1), closed: make(chan struct{}), clients: map[string]*clients{},
	}
	b.close = sync.OnceFunc(func() { close(b.closed) })
	return b
}

// Open returns how many connections are open.
func (b *Bounded) Open() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// Close implements net.Listener.
func (b *Bounded) Close() error {
	b.close()
	return b.Listener.Close()
}

// Accept implements net.Listener.
func (b *Bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		conn := &boundedConn{Conn: c, bounded: b, address: addressOf(c)}
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

func (b *Bounded) now() int64 { return int64(time.Since(b.begun)) }

// admit waits until there is room for c, which it may make. It reports false if c has to be closed.
func (b *Bounded) admit(c *boundedConn) bool {
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
func (b *Bounded) try(c *boundedConn) (victim *boundedConn, v verdict) {
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
func (b *Bounded) idlest(than *boundedConn, of *clients) *boundedConn {
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
func (b *Bounded) remove(c *boundedConn) {
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
func (b *Bounded) say(address string) {
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
func (c *boundedConn) Read(p []byte) (int, error) {
	begun := int64(0)
	if c.full {
		begun = c.bounded.now()
	}
	n, err := c.Conn.Read(p)
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) { // it was ended, which says whether there was more only if it had to wait
		c.full = c.full && c.bounded.now()-begun <= int64(blocked)
		return n, err
	}
	full := n == len(p)
	if n > 0 {
		now := c.bounded.now()
		if full && (!c.full || now-begun > int64(blocked)) {
			c.filled = now
		}
		c.last.Store(now)
		c.read.Add(int64(n))
	}
	c.full = full
	return n, err
}

// waits counts n more calls that wait for their message. The connection may be nil.
func (c *boundedConn) waits(n int64) {
	if c != nil {
		c.waiting.Add(n)
	}
}

// receives notes whether a call has received its message. The connection may be nil.
func (c *boundedConn) receives(it bool) {
	if c != nil && c.received.Load() != it {
		c.received.Store(it)
	}
}

// behind returns for how long there has always been more to read than there was room for.
func (c *boundedConn) behind() time.Duration {
	if !c.full {
		return 0
	}
	return time.Duration(c.last.Load() - c.filled)
}

// LocalAddr implements net.Conn.
func (c *boundedConn) LocalAddr() net.Addr { return localAddr{c.Conn.LocalAddr(), c} }

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	err := c.Conn.Close()
	c.bounded.remove(c)
	return err
}
