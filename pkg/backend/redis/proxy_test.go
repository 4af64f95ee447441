package redis

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// proxy stands between a client and a server and does to the bytes what bad networks do.
type proxy struct {
	l        net.Listener
	target   atomic.Pointer[string]
	latency  atomic.Int64 // of each direction's pieces, ± 20 %
	silent   atomic.Bool  // nothing gets through, in either direction
	slice    atomic.Bool  // replies come byte by byte
	limit    atomic.Int64 // replies are cut after so many bytes at most, at random, if not 0
	requests atomic.Int64 // the same for what is sent to the server
	accepted atomic.Int64
	open     atomic.Int64 // connections now
	most     atomic.Int64 // connections at once

	mu    sync.Mutex
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

// newProxy starts a proxy to addr, which ends with the test.
func newProxy(tb testing.TB, addr string) *proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &proxy{l: l, conns: map[net.Conn]bool{}}
	p.target.Store(&addr)
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.accepted.Add(1)
			p.wg.Go(func() { p.serve(c) })
		}
	})
	tb.Cleanup(func() {
		l.Close()
		p.reset()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }

// reset breaks all connections.
func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		c.Close()
	}
}

func (p *proxy) serve(c net.Conn) {
	p.most.Store(max(p.most.Load(), p.open.Add(1)))
	defer p.open.Add(-1)
	s, err := net.Dial("tcp", *p.target.Load())
	if err != nil {
		p.track(c, true)
		if p.silent.Load() {
			_, _ = io.Copy(io.Discard, c) // until the other side gives up
		}
		c.Close()
		p.track(c, false)
		return
	}
	p.track(c, true)
	p.track(s, true)
	var wg sync.WaitGroup
	wg.Go(func() { p.copy(s, c, false) })
	p.copy(c, s, true)
	wg.Wait()
	p.track(c, false)
	p.track(s, false)
}

// track keeps c among the connections that reset breaks, or no more.
func (p *proxy) track(c net.Conn, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on {
		p.conns[c] = true
	} else {
		delete(p.conns, c)
	}
}

// copy copies from one side to the other until either closes.
func (p *proxy) copy(to, from net.Conn, replies bool) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	left := -1
	limit := p.requests.Load()
	if replies {
		limit = p.limit.Load()
	}
	if limit > 0 {
		left = rand.IntN(int(limit))
	}
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if d := p.latency.Load(); d > 0 {
			time.Sleep(time.Duration(d*4/5 + rand.Int64N(d*2/5)))
		}
		if p.silent.Load() {
			continue
		}
		b := buf[:n]
		if left >= 0 {
			b = b[:min(len(b), left)]
			left -= len(b)
		}
		if err := p.write(to, b, replies); err != nil || left == 0 {
			return
		}
	}
}

func (p *proxy) write(to io.Writer, b []byte, replies bool) error {
	size := len(b)
	if replies && p.slice.Load() {
		size = 1
	}
	for len(b) > 0 {
		n := min(size, len(b))
		if _, err := to.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
