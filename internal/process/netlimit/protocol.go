package netlimit

import (
	"bytes"
	"net"
)

// Protocol is the protocol that a connection begins with.
type Protocol uint8

// The protocols, as far as the first bytes tell.
const (
	OtherProtocol Protocol = iota
	HTTP1
	HTTP2 // as gRPC does
	TLS
)

// protocolOf returns what a connection that begins with b speaks.
func protocolOf(b []byte) Protocol {
	switch {
	case bytes.HasPrefix(b, []byte("PRI * HTTP/2.0")):
		return HTTP2
	case beginsRequest(b):
		return HTTP1
	case len(b) > 1 && b[0] == 0x16 && b[1] == 3: // a handshake of SSL 3 or later
		return TLS
	default:
		return OtherProtocol
	}
}

// beginsRequest reports whether b begins with a method and a path. grpc reads 24 bytes at first, which do not reach the version.
func beginsRequest(b []byte) bool {
	method, path, found := bytes.Cut(b, []byte(" "))
	for _, c := range method {
		found = found && 'A' <= c && c <= 'Z'
	}
	return found && len(method) > 0 && bytes.HasPrefix(path, []byte("/"))
}

// beginning is a connection whose first read shows its protocol.
type beginning struct {
	net.Conn

	tell func(peer net.Addr, p Protocol) // nil once it has been called
}

// Read implements net.Conn.
func (c *beginning) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.tell != nil {
		c.tell(c.RemoteAddr(), protocolOf(b[:n]))
		c.tell = nil
	}
	return n, err
}

// Watch returns c, and calls tell with the protocol that it begins with.
func Watch(c net.Conn, tell func(peer net.Addr, p Protocol)) net.Conn { return &beginning{c, tell} }
