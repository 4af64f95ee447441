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

// mostPeeked is how many calls peek remembers of one read.
const mostPeeked = 128

// look returns what a message says of its call.
type look func(message []byte) overload.Seen

// peek looks for calls in what is read from a connection, before grpc works on it. When grpc asks whether a call may come in, it has taken
// up nothing but its headers. Most of the time its message has been read by then, too, and says whose it is. So when there is too much,
// somebody who asks for little is let in even over a connection over which others ask for much: Envoy sends all that it has over one.
//
// What it says is a hint. Where grpc turns calls away before it asks about them, such as those beyond maxStreams, it tells of others that
// were read with them. Only the goroutine that reads the connection may use it, which in grpc is also the one that asks.
type peek struct {
	skip   int // bytes until the next frame begins
	header [frameHeaderSize]byte
	filled int  // bytes of header
	ends   bool // with this frame the headers of a call end
	calls  []peeked
	next   int
}

// newPeek returns a peek for a connection from which nothing has been read.
func newPeek() peek { return peek{skip: prefaceSize} }

// peeked is a call whose headers have been read, and what is known of it.
type peeked struct {
	stream  uint32
	settled bool // something of its message has been read
	known   bool // all of it has
	seen    overload.Seen
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
	switch kind, flags := p.header[3], p.header[4]; {
	case kind == frameHeaders, kind == frameContinuation:
		p.ends = flags&flagEndHeaders != 0
	case kind == frameData && p.skip > 0 && whose != nil:
		c := p.unsettled()
		if c == nil {
			return
		}
		c.settled = true
		if flags&flagPadded == 0 && p.skip <= len(rest) && whole(rest[:p.skip]) {
			c.known, c.seen = true, whose(rest[messageHeaderSize:p.skip])
		}
	}
}

// unsettled returns the call to which the frame belongs that begins, if it is the first one of its message.
func (p *peek) unsettled() *peeked {
	stream := p.stream()
	for i := len(p.calls) - 1; i >= 0; i-- {
		if c := &p.calls[i]; c.stream == stream {
			if c.settled {
				return nil
			}
			return c
		}
	}
	return nil
}

// whole reports whether data is a message that is not compressed.
func whole(data []byte) bool {
	return len(data) >= messageHeaderSize && data[0] == 0 && int64(binary.BigEndian.Uint32(data[1:])) == int64(len(data)-messageHeaderSize)
}

// stream returns the number of the stream to which a frame belongs.
func (p *peek) stream() uint32 { return binary.BigEndian.Uint32(p.header[5:]) & streamBits }

// peekedConn is a connection whose peek sees what is read, and which waits while others are worked on.
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
	gate.AwaitRead(&c.of.client, overload.Read{Size: n, Full: c.of.full, First: first})
	return n, err
}

// seen returns what is known of the call that begins; nil if nothing is. It must be called once for each.
func (o origin) seen() *overload.Seen {
	if o.conn == nil {
		return nil
	}
	return o.conn.peek.take()
}

// handshakes are credentials that tell of each handshake that failed, and return connections with a peek.
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
		a.conn.peek = newPeek()
		secured = peekedConn{Conn: secured, of: a.conn, service: h.service}
	}
	return secured, info, nil
}
