package testkit

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy is a proxy that simulates a bad network between clients and a server. Everything can be changed at any time; changes for new
// connections do not affect existing ones.
type Proxy struct {
	Latency     atomic.Int64 // delay of each piece in each direction, in nanoseconds, ± 20 %
	Silent      atomic.Bool  // drops everything in both directions
	Slice       atomic.Bool  // passes replies on byte by byte
	CutReplies  atomic.Int64 // closes new connections after a random number of bytes of replies below this; 0 means never
	CutRequests atomic.Int64 // the same for requests

	Accepted atomic.Int64 // connections so far
	Open     atomic.Int64 // current connections
	MaxOpen  atomic.Int64 // maximum of Open

	addr    string
	target  atomic.Pointer[string]
	replies atomic.Pointer[func(to io.Writer, from io.Reader)]
	conns   conns
}

// NewProxy starts a proxy in front of the server at addr. It ends with the test.
func NewProxy(tb testing.TB, addr string) *Proxy {
	tb.Helper()
	return NewProxyOn(tb, Listen(tb), addr)
}

// NewProxyOn is like [NewProxy], with a given listener.
func NewProxyOn(tb testing.TB, l net.Listener, addr string) *Proxy {
	tb.Helper()
	p := &Proxy{addr: l.Addr().String()}
	p.Target(addr)
	serve(tb, l, &p.conns, p.serve)
	return p
}

// Addr returns the address for clients.
func (p *Proxy) Addr() string { return p.addr }

// Target sets the server of new connections.
func (p *Proxy) Target(addr string) { p.target.Store(&addr) }

// Replies sets a function that passes on the replies of new connections; nil means the default, according to the fields. When pass
// returns, the connection closes.
func (p *Proxy) Replies(pass func(to io.Writer, from io.Reader)) { p.replies.Store(&pass) }

// Cut closes all connections.
func (p *Proxy) Cut() { p.conns.cut(false) }

// Reset closes all connections with a reset of both sides.
func (p *Proxy) Reset() { p.conns.cut(true) }

func (p *Proxy) serve(c net.Conn) {
	p.Accepted.Add(1)
	p.MaxOpen.Store(max(p.MaxOpen.Load(), p.Open.Add(1)))
	defer p.Open.Add(-1)
	pass := p.replies.Load()
	s, err := net.Dial("tcp", *p.target.Load()) //nolint:noctx // on this machine
	if err != nil {
		if p.Silent.Load() {
			_, _ = io.Copy(io.Discard, c) // until the other side gives up
		}
		return
	}
	p.conns.keep(s)
	defer p.conns.drop(s)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer func() { _ = s.Close() }()
		p.copy(s, c, &p.CutRequests, nil)
	})
	if pass != nil && *pass != nil {
		(*pass)(c, s)
	} else {
		p.copy(c, s, &p.CutReplies, &p.Slice)
	}
	_, _ = s.Close(), c.Close()
	wg.Wait()
}

// copy copies from one side to the other until either closes.
func (p *Proxy) copy(to io.Writer, from io.Reader, within *atomic.Int64, slice *atomic.Bool) {
	left := -1
	if n := int(within.Load()); n > 0 {
		left = rand.IntN(n)
	}
	for buf := make([]byte, 64<<10); left != 0; {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if d := p.Latency.Load(); d > 0 {
			time.Sleep(time.Duration(d*4/5 + rand.Int64N(d*2/5)))
		}
		if p.Silent.Load() {
			continue
		}
		if left > 0 {
			n = min(n, left)
			left -= n
		}
		if err := write(to, buf[:n], slice != nil && slice.Load()); err != nil {
			return
		}
	}
}

// write writes b, byte by byte if slice is set.
func write(to io.Writer, b []byte, slice bool) error {
	size := len(b)
	if slice {
		size = 1
	}
	for len(b) > 0 {
		if _, err := to.Write(b[:size]); err != nil {
			return err
		}
		b = b[size:]
	}
	return nil
}
