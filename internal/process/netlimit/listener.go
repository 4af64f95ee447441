// Package netlimit bounds what the clients of a port may take: connections, calls whose message has not come, and the bytes of
// those. Where a bound is reached, it closes the connections of the client that takes most, and serves the others.
//
// A gRPC server finds the connection of a call by the call's local address: see [Of].
//
// This package is part of the process.
package netlimit

import (
	"cmp"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/admission"
	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
)

// MaxConnections is how many connections a listener may have, unless [Config.Max] says otherwise.
const MaxConnections = 10_000

const (
	idleAfter = time.Second            // without activity of its client: no call of ShouldRateLimit can still be open
	askAgain  = 100 * time.Millisecond // whether a connection has become idle, while a new one waits for that
	calmAt    = 0.9                    // of a bound, below which it is no longer reached

	unanswered = 10 * time.Second // after which a connection whose client acknowledges nothing is closed; package rlqs relies on it
)

// Config bounds what the clients of a listener may take. Its zero value is valid.
type Config struct {
	Max        int // connections; 0 means MaxConnections
	PerAddress int // connections of one IP address, or of an IPv6 network of 64 bits, which may have more until Max is reached; 0 means no limit
	MaxWaiting int // calls of each kind whose message has not come; 0 means 4096

	// Began is called with the protocol that each connection begins with; nil asks for none.
	Began func(peer net.Addr, p Protocol)
	// Observer is notified of what the bounds do; it may be nil.
	Observer Observer
}

// Observer is notified of what the bounds of a listener do. It must not use the listener.
type Observer interface {
	// Reached is called with a sentence about a bound of connections when that is reached, and with "" when none is reached any
	// more.
	Reached(what string)
	// Closed is called for each connection that is closed for others: because it was idle, or because its address or its IPv6 network
	// had too many (address).
	Closed(reason string)
	// Shed is called after calls have been shed, with their number.
	Shed(calls int)
	// Flood is called when calls begin to be shed, and when that is over.
	Flood(on bool)
}

// quiet is an Observer that does nothing.
type quiet struct{}

func (quiet) Reached(string) {}
func (quiet) Closed(string)  {}
func (quiet) Shed(int)       {}
func (quiet) Flood(bool)     {}

// Listener is a listener whose connections are bounded. Beyond a bound an idle connection is closed for the new one: one that has never
// been active if there is one, or else that whose activity is longest ago. If none is idle, a new connection from an address that has too
// many is closed. Any other one takes the place of one from an IPv6 network that has too many, or waits.
type Listener struct {
	net.Listener

	config  Config
	waiting waiting
	begun   time.Time
	freed   chan struct{}
	closed  chan struct{}
	close   func()

	mu      sync.Mutex
	open    int
	clients map[string]*clients
	reached verdict  // the bound that is reached, unless it is admitted
	crowd   *clients // the connections of the address that has reached its share, if the verdict is crowded
}

// clients are the connections of one address, or of one IPv6 network.
type clients struct{ conns []*Conn }

// Conn is a connection of a [Listener].
type Conn struct {
	net.Conn

	// Source is what the admission of calls knows of the connection.
	Source admission.Source

	listener *Listener
	address  string       // or network; "" for a unix socket
	index    int          // among those of its address
	gone     bool         // no longer counted
	began    int64        // when, since the listener began
	last     atomic.Int64 // the same, of its last activity; 0 if there was none
	read     atomic.Int64 // bytes
	streams  atomic.Int64 // open
	owed     atomic.Int64 // bytes that answers take which have not been written
	held     held
}

// localAddr is the local address of a connection, by which [Of] finds it: grpc gives calls nothing else.
type localAddr struct {
	net.Addr

	conn *Conn
}

// Of returns the connection with that local address, or nil if it is not one of a [Listener].
func Of(local net.Addr) *Conn {
	a, _ := local.(localAddr)
	return a.conn
}

// Listen bounds the connections of l.
func Listen(l net.Listener, c Config) *Listener {
	c.Max = cmp.Or(c.Max, MaxConnections)
	c.Observer = cmp.Or[Observer](c.Observer, quiet{})
	b := &Listener{
		Listener: l, config: c, begun: time.Now(), waiting: waiting{most: cmp.Or(c.MaxWaiting, maxWaiting), observer: c.Observer},
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
		giveUp(c, unanswered)
		if b.config.Began != nil {
			c = Watch(c, b.config.Began)
		}
		conn := &Conn{Conn: c, listener: b, address: addressOf(c)}
		if b.admit(conn) {
			return conn, nil
		}
		_ = c.Close() // it has not been used
	}
}

// addressOf returns the IP address of a client, or its IPv6 network, or "" if it has none.
func addressOf(c net.Conn) string {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return throttle.Network(a.String())
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
			reason := "idle"
			if !b.idle(victim) {
				reason = "address"
			}
			b.config.Observer.Closed(reason)
			_ = victim.Close() // its client notices by that
			continue
		case verdict == crowded:
			b.config.Observer.Closed("address")
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

// verdict says which bound a new connection has reached, if any.
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
	most := b.config.PerAddress
	tooMany := func(of *clients, n int) bool { return most > 0 && n > most && of.conns[0].address != "" }
	switch atBound := b.open >= b.config.Max; {
	case tooMany(of, len(of.conns)+1) && (atBound || !strings.Contains(c.address, "/")):
		v, victim = crowded, idlest(nil, of)
		if b.reached == admitted {
			b.reached, b.crowd = crowded, of
			b.config.Observer.Reached(fmt.Sprintf("%s has %d connections, the maximum for one address (GRPC_ADDRESS_SHARE)", c.address, most))
		}
	case atBound:
		v = full
		largest := of
		for _, of := range b.clients {
			victim = idlest(victim, of)
			if len(of.conns) > len(largest.conns) {
				largest = of
			}
		}
		if b.reached != full {
			b.reached = full
			b.config.Observer.Reached(fmt.Sprintf("%d connections are open, the maximum: "+
				"the longest idle are closed to make room for new ones", b.config.Max))
		}
		if !b.idle(victim) && tooMany(largest, len(largest.conns)) {
			return idlest(nil, largest), v
		}
	default:
		b.clients[c.address], c.began = of, b.now()
		c.index, of.conns = len(of.conns), append(of.conns, c)
		b.open++
	}
	if victim != nil && !b.idle(victim) {
		victim = nil
	}
	return victim, v
}

// idlest returns the connection to be closed first: one of those of an address, or than, which may be nil.
func idlest(than *Conn, of *clients) *Conn {
	for _, c := range of.conns {
		if than == nil || cmp.Or(cmp.Compare(c.last.Load(), than.last.Load()), cmp.Compare(c.began, than.began)) < 0 {
			than = c
		}
	}
	return than
}

// idle reports whether c is idle.
func (b *Listener) idle(c *Conn) bool { return b.now()-max(c.last.Load(), c.began) >= int64(idleAfter) }

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
	if end == 0 {
		delete(b.clients, c.address)
	}
	if b.reached == full && float64(b.open) < calmAt*float64(b.config.Max) ||
		b.reached == crowded && b.crowd == of && float64(end) < calmAt*float64(b.config.PerAddress) {
		b.reached, b.crowd = admitted, nil
		b.config.Observer.Reached("")
	}
	select {
	case b.freed <- struct{}{}:
	default:
	}
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.read.Add(int64(n))
	}
	return n, err
}

// Active notes that the client has sent a whole request. Bytes alone are no activity: anyone can send a few every second.
func (c *Conn) Active() { c.last.Store(c.listener.now()) }

// Silent reports whether the client has sent nothing so far.
func (c *Conn) Silent() bool { return c.read.Load() == 0 }

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return localAddr{c.Conn.LocalAddr(), c} }

// Close implements net.Conn.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.listener.remove(c)
	c.listener.waiting.end(c)
	return err
}
