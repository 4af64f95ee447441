package main

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// dialTime is how long a connection may take.
const dialTime = time.Second

// gate is a proxy that cuts each connection after a number of bytes that is drawn, in one of both directions, and knows
// how many connections were being opened at once.
type gate struct {
	addr, to string
	cuts     atomic.Int64 // connections that were cut
	dialing  atomic.Int64 // connections that have not had an answer
	most     atomic.Int64 // of these at once
	opened   atomic.Int64
	within   atomic.Int64 // cut so many bytes after its beginning, at most; 0 cuts nothing
	slow     atomic.Int64 // nanoseconds before what a connection sends first is passed on

	mu   sync.Mutex // guards what is below
	rand *rand.Rand
	open map[net.Conn]struct{}
}

// gate returns a gate before an address, which ends with the check.
func (e *env) gate(ctx context.Context, to string) *gate {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	e.must(err)
	g := &gate{addr: l.Addr().String(), to: to, rand: rand.New(rand.NewPCG(uint64(e.seed), hash(e.id+"gate"))), open: map[net.Conn]struct{}{}}
	e.atEnd(func() {
		_ = l.Close()
		g.cutAll()
	})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go g.pass(conn)
		}
	}()
	return g
}

// cutAll closes all connections.
func (g *gate) cutAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.open {
		_ = c.Close()
	}
}

// pass passes a connection on until one side closes it, or it is cut.
func (g *gate) pass(client net.Conn) {
	g.opened.Add(1)
	n := g.dialing.Add(1)
	for most := g.most.Load(); n > most && !g.most.CompareAndSwap(most, n); most = g.most.Load() {
	}
	var once sync.Once
	answered := func() { once.Do(func() { g.dialing.Add(-1) }) }
	defer answered()
	defer func() { _ = client.Close() }()
	server, err := net.DialTimeout("tcp", g.to, dialTime) //nolint:noctx // has its own time-out
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	g.mu.Lock()
	g.open[client], g.open[server] = struct{}{}, struct{}{}
	up, down := int64(-1), int64(-1)
	if within := g.within.Load(); within > 0 {
		if g.rand.IntN(4) == 0 {
			up = 1 + g.rand.Int64N(4*within) // scripts are sent first
		} else {
			down = 1 + g.rand.Int64N(within)
		}
	}
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.open, client)
		delete(g.open, server)
	}()
	var wg sync.WaitGroup
	wg.Go(func() {
		time.Sleep(time.Duration(g.slow.Load()))
		g.copy(server, client, up, nil)
	})
	wg.Go(func() { g.copy(client, server, down, answered) })
	wg.Wait()
}

// copy passes bytes on, up to most if that is not negative, and closes both sides then.
func (g *gate) copy(to, from net.Conn, most int64, first func()) {
	defer func() { _, _ = to.Close(), from.Close() }()
	if first != nil {
		b := make([]byte, 1)
		if most == 0 {
			return
		}
		if n, err := from.Read(b); n == 0 || err != nil {
			return
		}
		first()
		if _, err := to.Write(b); err != nil {
			return
		}
		most--
	}
	if most < 0 {
		_, _ = io.Copy(to, from)
		return
	}
	if n, err := io.CopyN(to, from, most); n == most && err == nil {
		g.cuts.Add(1)
	}
}
