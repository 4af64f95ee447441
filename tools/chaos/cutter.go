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

// dialTime bounds the time to connect.
const dialTime = time.Second

// gate is a proxy that cuts each connection after a random number of bytes in one direction. It also counts concurrent dials.
type gate struct {
	addr, to string
	cuts     atomic.Int64 // cut connections
	dialing  atomic.Int64 // connections without a reply so far
	most     atomic.Int64 // maximum of dialing
	opened   atomic.Int64
	within   atomic.Int64 // maximum bytes before a cut; 0 means no cuts
	slow     atomic.Int64 // delay in nanoseconds before the client's first bytes are forwarded

	mu   sync.Mutex // protects the fields below
	rand *rand.Rand
	open map[net.Conn]struct{}
}

// gate returns a gate in front of an address. It closes at the end of the check.
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

// pass forwards a connection until one side closes it or it is cut.
func (g *gate) pass(client net.Conn) {
	g.opened.Add(1)
	n := g.dialing.Add(1)
	for most := g.most.Load(); n > most && !g.most.CompareAndSwap(most, n); most = g.most.Load() {
	}
	var once sync.Once
	answered := func() { once.Do(func() { g.dialing.Add(-1) }) }
	defer answered()
	defer func() { _ = client.Close() }()
	server, err := net.DialTimeout("tcp", g.to, dialTime) //nolint:noctx // has its own timeout
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

// copy forwards bytes, at most most if that is not negative, and then closes both sides.
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
