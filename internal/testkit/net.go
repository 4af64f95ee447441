package testkit

import (
	"net"
	"sync"
	"testing"
)

// Listen listens on a free port of 127.0.0.1 until the test ends.
func Listen(tb testing.TB) net.Listener {
	tb.Helper()
	return ListenOn(tb, "tcp", "127.0.0.1:0")
}

// ListenOn is like [Listen], for another network or address.
func ListenOn(tb testing.TB, network, addr string) net.Listener {
	tb.Helper()
	l, err := net.Listen(network, addr) //nolint:noctx // does not wait
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close() }) // its server closes it too
	return l
}

// Serve calls handle for each connection to l, and closes the connection afterwards. When the test ends, it closes l and the remaining
// connections, and waits for the calls.
func Serve(tb testing.TB, l net.Listener, handle func(net.Conn)) {
	tb.Helper()
	serve(tb, l, new(conns), handle)
}

// serve implements Serve, with open for the connections; handle may add more to them.
func serve(tb testing.TB, l net.Listener, open *conns, handle func(net.Conn)) {
	tb.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer open.drop(c)
				open.keep(c)
				handle(c)
			})
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		open.end()
		wg.Wait()
	})
}

// conns holds the open connections.
type conns struct {
	mu   sync.Mutex
	all  map[net.Conn]bool
	over bool
}

// keep adds c, or closes it after end.
func (o *conns) keep(c net.Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[net.Conn]bool{}
	}
	o.all[c] = true
	if o.over {
		_ = c.Close()
	}
}

// drop closes c and removes it.
func (o *conns) drop(c net.Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = c.Close()
	delete(o.all, c)
}

// cut closes all connections. With reset, the other side loses data that it has not read yet.
func (o *conns) cut(reset bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for c := range o.all {
		if tcp, ok := c.(*net.TCPConn); ok && reset {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
}

// end closes all connections, including future ones.
func (o *conns) end() {
	o.mu.Lock()
	o.over = true
	o.mu.Unlock()
	o.cut(false)
}

// From returns l with connections whose remote address is addr.
func From(l net.Listener, addr net.Addr) net.Listener { return remote{l, addr} }

type remote struct {
	net.Listener

	from net.Addr
}

// Accept implements [net.Listener].
func (l remote) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return remoteConn{c, l.from}, nil
}

type remoteConn struct {
	net.Conn

	from net.Addr
}

// RemoteAddr implements [net.Conn].
func (c remoteConn) RemoteAddr() net.Addr { return c.from }
