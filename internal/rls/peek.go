package rls

import (
	"encoding/binary"
	"net"
	"slices"

	"google.golang.org/grpc/credentials"

	"github.com/ratelimitd/ratelimitd/internal/overload"
)

// What peek knows of HTTP/2 (RFC 9113), and of gRPC over it.
const (
	prefaceSize       = 24 // what a client begins with
	frameHeaderSize   = 9
	frameData         = 0x0
	frameHeaders      = 0x1
	frameContinuation = 0x9
	flagEndHeaders    = 0x4 // of HEADERS and CONTINUATION
	flagPadded        = 0x8 // of DATA
	streamBits        = 1<<31 - 1
	messageHeaderSize = 5 // of a message: whether it is compressed, and its size
)

// mostPeeked is of how many calls peek tells that are read at once.
const mostPeeked = 256

// look returns what a message says of its call.
type look func(message []byte) overload.Seen

// peek looks for calls in what is read from a connection, before grpc works on it. When grpc asks whether a call may come in it has taken
// up nothing but its headers, but most of the time its message has been read by then, and with it whose it is: so somebody who asks for
// little is let in, when there is too much, over the very connection over which others ask for much, as Envoy sends all that it has.
//
// It is wrong where grpc turns calls away before it asks about them, such as those beyond maxStreams: then it tells of others that were
// read with them. It must be used by who reads the connection alone, as grpc does.
type peek struct {
	skip   int // bytes until the next frame begins
	header [frameHeaderSize]byte
	filled int  // bytes of header
	ends   bool // with this frame the headers of a call end
	calls  []peeked
	next   int
}

// peeked is a call whose headers have been read, and what is known of it.
type peeked struct {
	stream uint32
	known  bool // its message has been read as well
	seen   overload.Seen
}

// take returns what is known of the next call; nil if nothing is. It must be called for each that grpc asks about.
func (p *peek) take() *overload.Seen {
	if p.next >= len(p.calls) {
		return nil
	}
	c := &p.calls[p.next]
	p.next++
	if !c.known {
		return nil
	}
	return &c.seen
}

// scan looks at what has been read, once grpc has worked on all that was read before. If whose is nil, nobody wants to know of calls.
func (p *peek) scan(b []byte, whose look) {
	p.calls, p.next = p.calls[:0], 0
	if whose == nil {
		p.calls = nil
	}
	for len(b) > 0 {
		if p.skip == 0 {
			n := copy(p.header[p.filled:], b)
			b = b[n:]
			if p.filled += n; p.filled < frameHeaderSize {
				return
			}
			p.begin(b, whose)
		}
		n := min(p.skip, len(b))
		b = b[n:]
		if p.skip -= n; p.skip == 0 && p.ends {
			p.ends = false
			if whose != nil && len(p.calls) < mostPeeked {
				p.calls = append(p.calls, peeked{stream: p.stream()})
			}
		}
	}
}

// begin begins the frame whose header has come; rest is what was read after that.
func (p *peek) begin(rest []byte, whose look) {
	p.filled = 0
	p.skip = int(p.header[0])<<16 | int(p.header[1])<<8 | int(p.header[2])
	switch kind, flags := p.header[3], p.header[4]; kind {
	case frameHeaders, frameContinuation:
		p.ends = flags&flagEndHeaders != 0
	case frameData:
		if whose != nil && flags&flagPadded == 0 && p.skip <= len(rest) {
			p.message(rest[:p.skip], whose)
		}
	}
}

// stream returns the number of the stream to which a frame belongs.
func (p *peek) stream() uint32 { return binary.BigEndian.Uint32(p.header[5:]) & streamBits }

// message finds out whose a message is, if data is all of it.
func (p *peek) message(data []byte, whose look) {
	if len(data) < messageHeaderSize || data[0] != 0 || int64(binary.BigEndian.Uint32(data[1:])) != int64(len(data)-messageHeaderSize) {
		return
	}
	stream := p.stream()
	for i := len(p.calls) - 1; i >= 0; i-- {
		if c := &p.calls[i]; c.stream == stream {
			if !c.known {
				c.known, c.seen = true, whose(data[messageHeaderSize:])
			}
			return
		}
	}
}

// peekedConn is a connection at which is looked when it is read.
type peekedConn struct {
	net.Conn

	of      *boundedConn
	service *Service
}

// Read implements net.Conn.
func (c peekedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n == 0 {
		return n, err
	}
	gate, p := c.service.config.Gate, &c.of.peek
	if gate.Limited() {
		p.scan(b[:n], c.service.seen)
	} else {
		p.scan(b[:n], nil)
	}
	first := slices.ContainsFunc(p.calls, func(x peeked) bool { return x.known && gate.Under(x.seen.Domain) })
	gate.AwaitRead(&c.of.client, overload.Read{Size: n, Full: n == len(b), First: first})
	return n, err
}

// seen returns what is known of the call that begins; nil if nothing is. It must be called once for each.
func (o origin) seen() *overload.Seen {
	if o.conn == nil {
		return nil
	}
	return o.conn.peek.take()
}

// handshakes are credentials that tell of each handshake that failed, and have what is then read looked at.
type handshakes struct {
	credentials.TransportCredentials

	service *Service
}

// ServerHandshake implements credentials.TransportCredentials.
//
//nolint:ireturn // as grpc wants it
func (h handshakes) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := h.TransportCredentials.ServerHandshake(c)
	if err != nil {
		h.service.config.Hooks.Handshake(c.RemoteAddr(), err)
		return secured, info, err
	}
	if a, ok := c.LocalAddr().(localAddr); ok {
		a.conn.peek.skip = prefaceSize
		secured = peekedConn{Conn: secured, of: a.conn, service: h.service}
	}
	return secured, info, nil
}
