package netlimit

import (
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener whose connections are pipes in memory, so that what takes minutes can be played in virtual time.
type pipes struct {
	dialled chan net.Conn
	close   func()
	closed  chan struct{}
}

func newPipes() *pipes {
	p := &pipes{dialled: make(chan net.Conn), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

// Accept implements net.Listener.
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.dialled:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *pipes) Close() error {
	p.close()
	return nil
}

// Addr implements net.Listener.
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.dialled <- server
	return client
}

// The connection after the ten thousandth waits until one closes, or has been idle for a second.
func TestConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		l := Listen(p, Config{})
		accepted := make(chan net.Conn, MaxConnections+2)
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				accepted <- c
			}
		})
		for range MaxConnections {
			p.dial()
		}
		wg.Go(func() { p.dial() })
		synctest.Wait()
		if n := len(accepted); n != MaxConnections {
			t.Errorf("%d connections at a time, want %d", n, MaxConnections)
		}
		if err := (<-accepted).Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := len(accepted); n != MaxConnections {
			t.Errorf("after one has closed there are %d, want %d", n, MaxConnections)
		}
		wg.Go(func() { p.dial() })
		time.Sleep(2 * idleAfter)
		synctest.Wait()
		if n := len(accepted); n != MaxConnections+1 || l.Open() != MaxConnections {
			t.Errorf("after they have been idle, %d were accepted and %d are open, want the new one in the place of another", n, l.Open())
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}
