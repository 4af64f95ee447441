package testkit

import (
	"net"
	"sync"
)

// Pipes is a listener whose connections are pipes in memory, so that long tests can use virtual time.
type Pipes struct {
	dialled chan net.Conn
	close   func()
	closed  chan struct{}
}

// NewPipes returns a listener without connections.
func NewPipes() *Pipes {
	p := &Pipes{dialled: make(chan net.Conn), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

// Accept implements net.Listener.
func (p *Pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.dialled:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *Pipes) Close() error {
	p.close()
	return nil
}

// Addr implements net.Listener.
func (p *Pipes) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

// Dial returns the client's end of a new connection once it has been accepted.
func (p *Pipes) Dial() net.Conn {
	client, server := net.Pipe()
	p.dialled <- server
	return client
}
