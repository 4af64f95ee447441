package memcached

import (
	"io"
	"net"
	"sync"
	"testing"
)

// forward passes what comes to l on to addr, until the test ends.
func forward(tb testing.TB, l net.Listener, addr string) {
	tb.Helper()
	serve(tb, l, func(c net.Conn) {
		up, err := net.Dial("tcp", addr)
		if err != nil {
			return
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = io.Copy(up, c) // ends with either connection
			_ = up.Close()
		})
		_, _ = io.Copy(c, up)
		_ = c.Close()
		wg.Wait()
	})
}

// serve calls handle for each connection to l, closes it afterwards, and all of them when the test ends.
func serve(tb testing.TB, l net.Listener, handle func(net.Conn)) {
	tb.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	over := false
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[c] = true
			if over {
				_ = c.Close()
			}
			mu.Unlock()
			wg.Go(func() {
				handle(c)
				_ = c.Close()
				mu.Lock()
				delete(conns, c)
				mu.Unlock()
			})
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		over = true
		for c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
}
