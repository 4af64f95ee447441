package netlimit

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// hosts is a listener in memory, whose connections come from addresses.
type hosts struct {
	*testkit.Pipes

	from chan net.Addr
}

// host is a connection from an address.
type host struct {
	net.Conn

	from net.Addr
}

// RemoteAddr implements net.Conn.
func (h host) RemoteAddr() net.Addr { return h.from }

// Accept implements net.Listener.
func (h hosts) Accept() (net.Conn, error) {
	c, err := h.Pipes.Accept()
	if err != nil {
		return nil, err
	}
	return host{c, <-h.from}, nil
}

// town is a bounded listener of hosts, what it accepted, and why it closed connections.
type town struct {
	quiet

	t     *testing.T
	hosts hosts
	conns chan *Conn

	mu     sync.Mutex
	closed map[string]int
}

func newTown(t *testing.T, c Config) *town {
	t.Helper()
	w := &town{t: t, hosts: hosts{testkit.NewPipes(), make(chan net.Addr, 100)}, conns: make(chan *Conn, 100), closed: map[string]int{}}
	c.Observer = w
	accept(t, Listen(w.hosts, c), w.conns)
	return w
}

// Closed implements Observer.
func (w *town) Closed(reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed[reason]++
}

// connect returns both ends of a connection from an address; that of the listener is nil if it was closed, or still waits.
func (w *town) connect(from string) (client net.Conn, conn *Conn) {
	w.t.Helper()
	at, err := net.ResolveTCPAddr("tcp", from)
	if err != nil {
		w.t.Fatal(err)
	}
	w.hosts.from <- at
	client = w.hosts.Dial()
	w.t.Cleanup(func() { _ = client.Close() })
	synctest.Wait()
	select {
	case conn = <-w.conns:
	default:
	}
	return client, conn
}

// call makes a call on a connection, whose message comes.
func call(t *testing.T, conn *Conn) {
	t.Helper()
	c := new(Call)
	if !conn.Begin(t.Context(), Hot, c) {
		t.Error("there is no room for a call")
	}
	c.Received(100)
}

// TestActivity: only messages are activity. A connection with a call from time to time outlives those with none, and with any number of
// bytes; between those with calls, the one whose last is longest ago goes first.
func TestActivity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, Config{Max: 4})
		time.Sleep(time.Second)
		honest, conn := w.connect("10.0.0.1:1")
		var busy []net.Conn
		for i := range 3 {
			c, _ := w.connect(fmt.Sprintf("10.0.0.2:%d", i+1))
			busy = append(busy, c)
		}
		for i := range 20 {
			if i%5 == 0 {
				call(t, conn)
			}
			time.Sleep(400 * time.Millisecond)
			for _, c := range busy {
				_, _ = c.Write([]byte("a frame")) // an error once it is closed
			}
			if i%5 == 4 { // the honest one has been idle for 2 s
				c, newcomer := w.connect(fmt.Sprintf("10.0.0.3:%d", i+1))
				if newcomer == nil {
					t.Errorf("after %d frames a new connection has to wait", i+1)
				}
				busy = append(busy, c)
			}
		}
		if closed(honest) || w.closed["idle"] != 4 {
			t.Errorf("the connection with calls was closed, or not four others: %v", w.closed)
		}
	})
}

// TestNetworks: connections of an IPv6 network of 64 bits count together, and may be more than an address may have until there is no room.
// Then one of them, though not idle, goes for a connection from elsewhere.
func TestNetworks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, Config{Max: 8, PerAddress: 2})
		var conns []*Conn
		for i := range 8 {
			_, c := w.connect(fmt.Sprintf("[2001:db8::%d]:1", i+1))
			if c == nil {
				t.Fatalf("connection %d of a network was closed though there is room", i)
			}
			conns = append(conns, c)
		}
		time.Sleep(2 * idleAfter)
		for _, c := range conns {
			call(t, c)
		}
		if _, c := w.connect("[2001:db8::9]:1"); c != nil || w.closed["address"] != 1 {
			t.Errorf("a further connection of the network was accepted: %v", w.closed)
		}
		for i := range 2 {
			if _, c := w.connect(fmt.Sprintf("10.0.0.1:%d", i+1)); c == nil || w.closed["address"] != 2+i {
				t.Errorf("connection %d from elsewhere has to wait: %v", i, w.closed)
			}
		}
		if _, c := w.connect("10.0.0.1:3"); c != nil || w.closed["address"] != 4 {
			t.Errorf("a third connection of an address was accepted: %v", w.closed)
		}
		if c := conns[len(conns)-1]; closed(c) {
			t.Error("the connection with the latest call was closed")
		}
	})
}
