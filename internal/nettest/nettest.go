// Package nettest has listeners for tests.
package nettest

import "net"

// From returns l, with connections that seem to come from addr.
func From(l net.Listener, addr net.Addr) net.Listener { return remote{l, addr} }

type remote struct {
	net.Listener

	from net.Addr
}

// Accept implements net.Listener.
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

// RemoteAddr implements net.Conn.
func (c remoteConn) RemoteAddr() net.Addr { return c.from }
