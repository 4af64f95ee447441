package xds_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
)

// way is a proxy between a client and a control plane.
type way struct {
	address string

	mu     sync.Mutex
	target string                             // where connections are forwarded to
	copy   func(to io.Writer, from io.Reader) // how bytes from the control plane are passed on
	open   map[net.Conn]struct{}
	seen   int
	closed bool
}

// newWay returns a proxy to a control plane, which runs until the test ends.
func newWay(t *testing.T, target string) *way {
	t.Helper()
	w := &way{target: target, copy: plainly, open: map[net.Conn]struct{}{}}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.address = l.Addr().String()
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { w.lead(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		w.mu.Lock()
		w.closed = true
		w.mu.Unlock()
		w.cut(false)
		all.Wait()
	})
	return w
}

func plainly(to io.Writer, from io.Reader) { _, _ = io.Copy(to, from) }

// keep records an open connection; it returns false once the proxy is closed.
func (w *way) keep(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		_ = c.Close()
		return false
	}
	w.open[c] = struct{}{}
	return true
}

func (w *way) lead(c net.Conn) {
	defer c.Close()
	if !w.keep(c) {
		return
	}
	w.mu.Lock()
	w.seen++
	target, passOn := w.target, w.copy
	w.mu.Unlock()
	d, err := new(net.Dialer).DialContext(context.Background(), "tcp", target)
	if err != nil {
		return
	}
	defer d.Close()
	if !w.keep(d) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() {
		plainly(d, c)
		_ = d.Close()
	})
	passOn(c, d)
	_ = c.Close()
	both.Wait()
}

// cut ends all connections, with a reset if asked to.
func (w *way) cut(reset bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.open {
		if tcp, ok := c.(*net.TCPConn); ok && reset {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
		delete(w.open, c)
	}
}

// change sets how connections are forwarded from now on.
func (w *way) change(target string, passOn func(io.Writer, io.Reader)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.target, w.copy = target, passOn
}

func (w *way) connections() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen
}
