package netlimit

import (
	"bytes"
	"net"
)

// Protocol is the first protocol of a connection.
type Protocol uint8

// The protocols that the first bytes distinguish.
const (
	OtherProtocol Protocol = iota
	HTTP1
	HTTP2 // including gRPC
	TLS
)

// protocolOf returns the protocol of a connection that begins with b.
func protocolOf(b []byte) Protocol {
	switch {
	case bytes.HasPrefix(b, []byte("PRI * HTTP/2.0")):
		return HTTP2
	case beginsRequest(b):
		return HTTP1
	case len(b) > 1 && b[0] == 0x16 && b[1] == 3: // a TLS or SSL 3 handshake
		return TLS
	default:
		return OtherProtocol
	}
}

// beginsRequest reports whether b begins with a method and a path. grpc first reads 24 bytes, which may not include the version.
func beginsRequest(b []byte) bool {
	method, path, found := bytes.Cut(b, []byte(" "))
	for _, c := range method {
		found = found && 'A' <= c && c <= 'Z'
	}
	return found && len(method) > 0 && bytes.HasPrefix(path, []byte("/"))
}

// beginning detects the protocol of a connection in its first read.
type beginning struct {
	net.Conn

	tell func(peer net.Addr, p Protocol) // nil after the call
}

// Read implements [net.Conn].
func (c *beginning) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.tell != nil {
		c.tell(c.RemoteAddr(), protocolOf(b[:n]))
		c.tell = nil
	}
	return n, err
}

// Watch returns a wrapper of c that calls tell with its first protocol.
func Watch(c net.Conn, tell func(peer net.Addr, p Protocol)) net.Conn { return &beginning{c, tell} }
