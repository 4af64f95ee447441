// Package netlimit limits the resources that the clients of a port use: connections, calls that wait for their message, and
// the bytes of these messages. At a limit, it closes the connections of the client that uses the most, and serves the others.
//
// A gRPC server finds the connection of a call by the call's local address; see [Of].
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

// MaxConnections is the default limit of a listener's connections.
const MaxConnections = 10_000

const (
	idleAfter      = time.Second            // without a complete request of its client; no call of ShouldRateLimit lasts this long
	idleCheckEvery = 100 * time.Millisecond // interval of checking for an idle connection while a new one waits
	calmAt         = 0.9                    // fraction of a limit below which it no longer counts as reached

	unanswered = 10 * time.Second // a connection whose client acknowledges nothing for this long is closed; package rlqs relies on it
)

// Config sets the limits of a listener. The zero value is valid.
type Config struct {
	Max        int // connections; 0 means MaxConnections
	PerAddress int // connections of one IP address or IPv6 /64 network, which may exceed this until Max is reached; 0 means no limit
	MaxWaiting int // calls of each kind whose message has not come; 0 means 4096

	// Began is called with the first protocol of each connection; may be nil.
	Began func(peer net.Addr, p Protocol)
	// Observer is notified when limits take effect; may be nil.
	Observer Observer
}

// Observer is notified when limits take effect. It must not use the listener.
type Observer interface {
	// Reached is called with a description when a limit of connections is reached, and with "" when none is reached any more.
	Reached(what string)
	// Closed is called for each connection that is closed in favour of others, with the reason: idle, or address if its address or
	// IPv6 network had too many.
	Closed(reason string)
	// Shed is called with the number of calls that were shed.
	Shed(calls int)
	// Flood is called when shedding begins, and when it has ended.
	Flood(on bool)
}

// quiet is an Observer that does nothing.
type quiet struct{}

func (quiet) Reached(string) {}
func (quiet) Closed(string)  {}
func (quiet) Shed(int)       {}
func (quiet) Flood(bool)     {}

// Listener limits connections. At a limit, an idle connection is closed in favour of the new one: preferably one that was never active,
// otherwise the one that has been inactive for the longest time. If none is idle, a new connection is closed if its address has too
// many. Otherwise it replaces a connection of an IPv6 network with too many, or waits.
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
	reached verdict  // the limit that is reached, or admitted
	crowd   *clients // if reached is crowded: the connections of that address
}

// clients is the connections of one IP address or IPv6 network.
type clients struct{ conns []*Conn }

// Conn is a connection of a [Listener].
type Conn struct {
	net.Conn

	// Source is the state of call admission for the connection.
	Source admission.Source

	listener *Listener
	address  string       // IP address or network; "" for a unix socket
	index    int          // in clients.conns
	removed  bool         // no longer counted
	began    int64        // nanoseconds since Listener.begun
	last     atomic.Int64 // time of the last activity, like began; 0 means never
	read     atomic.Int64 // bytes
	streams  atomic.Int64 // open streams
	owed     atomic.Int64 // bytes of answers that are not written yet
	held     held
}

// localAddr is the local address of a connection, from which [Of] finds the connection: grpc passes nothing else to
// calls.
type localAddr struct {
	net.Addr

	conn *Conn
}

// Of returns the connection with this local address, or nil if it is not of a [Listener].
func Of(local net.Addr) *Conn {
	a, _ := local.(localAddr)
	return a.conn
}

// Listen limits the connections of l.
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

// Open returns the number of open connections.
func (b *Listener) Open() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// Close implements [net.Listener].
func (b *Listener) Close() error {
	b.close()
	return b.Listener.Close()
}

// Accept implements [net.Listener].
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
		_ = c.Close() // unused
	}
}

// addressOf returns the IP address or IPv6 network of a client, or "".
func addressOf(c net.Conn) string {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return throttle.Network(a.String())
	}
	return ""
}

func (b *Listener) now() int64 { return int64(time.Since(b.begun)) }

// admit waits for room for c, closing other connections if necessary. It returns false if the caller must close c.
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
			_ = victim.Close() // the client notices
			continue
		case verdict == crowded:
			b.config.Observer.Closed("address")
			return false
		}
		select {
		case <-b.freed:
		case <-time.After(idleCheckEvery):
		case <-b.closed:
			return false
		}
	}
}

// verdict names the limit that a new connection has reached, if any.
type verdict uint8

const (
	admitted verdict = iota
	crowded          // the address has too many
	full             // the listener has too many
)

// try counts c if there is room. Otherwise it returns the connection to close in favour of c, or nil.
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

// idlest returns the connection to close first among those of an address and than, which may be nil.
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
	if c.removed {
		return
	}
	c.removed = true
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

// Read implements [net.Conn].
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.read.Add(int64(n))
	}
	return n, err
}

// Active records that the client has sent a complete request. Single bytes do not count, because any client can send some
// every second.
func (c *Conn) Active() { c.last.Store(c.listener.now()) }

// Silent reports whether the client has sent nothing yet.
func (c *Conn) Silent() bool { return c.read.Load() == 0 }

// LocalAddr implements [net.Conn].
func (c *Conn) LocalAddr() net.Addr { return localAddr{c.Conn.LocalAddr(), c} }

// Close implements [net.Conn].
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.listener.remove(c)
	c.listener.waiting.end(c)
	return err
}
