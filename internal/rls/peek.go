package rls

import (
	"encoding/binary"
	"net"
	"runtime"
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
	frameSettings     = 0x4
	frameWindow       = 0x8
	frameContinuation = 0x9
	flagEndStream     = 0x1 // of HEADERS and DATA
	flagAck           = 0x1 // of SETTINGS
	flagEndHeaders    = 0x4 // of HEADERS and CONTINUATION
	flagPadded        = 0x8 // of DATA
	streamBits        = 1<<31 - 1
	messageHeaderSize = 5 // of a message: whether it is compressed, and its size
)

const (
	mostPeeked = 128 // calls that peek remembers of one read
	keptCalls  = 16  // for which a connection keeps memory until it is read again
)

// look returns what a message says of its call.
type look func(message []byte) overload.Seen

// frames finds where HTTP/2 frames begin and end in what is read or written.
type frames struct {
	skip   int // bytes until the next one begins
	header [frameHeaderSize]byte
	filled int // bytes of header
}

// open takes what b has of the header of the next frame, and reports whether it is complete.
func (f *frames) open(b []byte) (rest []byte, complete bool) {
	n := copy(f.header[f.filled:], b)
	if f.filled += n; f.filled < frameHeaderSize {
		return b[n:], false
	}
	f.filled = 0
	f.skip = int(f.header[0])<<16 | int(f.header[1])<<8 | int(f.header[2])
	return b[n:], true
}

// pass passes over what b has of the frame that is open, and reports whether it ends there.
func (f *frames) pass(b []byte) (rest []byte, ends bool) {
	n := min(f.skip, len(b))
	f.skip -= n
	return b[n:], f.skip == 0
}

// between reports whether no frame is open.
func (f *frames) between() bool { return f.skip == 0 && f.filled == 0 }

// kind and flags are those of the frame that was opened last.
func (f *frames) kind() byte  { return f.header[3] }
func (f *frames) flags() byte { return f.header[4] }

// heading reports whether it is one of headers that go on in the next frame.
func (f *frames) heading() bool {
	return (f.kind() == frameHeaders || f.kind() == frameContinuation) && f.flags()&flagEndHeaders == 0
}

// stream returns the number of its stream.
func (f *frames) stream() uint32 { return binary.BigEndian.Uint32(f.header[5:]) & streamBits }

// peek looks for calls in what is read from a connection, before grpc works on it. When grpc asks whether a call may come in, it has taken
// up nothing but its headers. Most of the time its message has been read by then, too, and says whose it is. So when there is too much,
// somebody who asks for little is let in even over a connection over which others ask for much: Envoy sends all that it has over one. And
// calls for which there is no time need not be given to grpc at all: see [cull].
//
// What it says when grpc asks is a hint. Where grpc turns calls away before it asks about them, such as those beyond maxStreams, it tells of
// others that were read with them. Only the goroutine that reads the connection may use it, which in grpc is also the one that asks.
type peek struct {
	frames frames
	read   int    // bytes of what was read last
	ends   bool   // with the frame that is open the headers of a call end
	head   span   // where that is, if it is all that there is of them, and stateless
	newest uint32 // stream whose headers have been read
	calls  []peeked
	next   int
	tables bool // the client has set the size of the table of headers, which what is written next has to begin with
}

// newPeek returns a peek for a connection from which nothing has been read.
func newPeek() peek { return peek{frames: frames{skip: prefaceSize}} }

// span is a part of what was read; none if it is empty.
type span struct{ from, to int }

// peeked is a call whose headers have been read, and what is known of it.
type peeked struct {
	stream  uint32
	settled bool // something of its message has been read
	known   bool // all of it has
	seen    overload.Seen

	// Its frames, if that is all of them, and grpc need not know of them.
	head, message span
}

// take returns what is known of the next call; nil if nothing is. It must be called for each that grpc asks about.
func (p *peek) take() *overload.Seen {
	if p.next >= len(p.calls) {
		return nil
	}
	c := &p.calls[p.next]
	if p.next++; p.next == len(p.calls) && len(p.calls) > keptCalls {
		p.calls, p.next = nil, 0
	}
	if !c.known {
		return nil
	}
	return &c.seen
}

// scan looks at what has been read, once grpc has worked on all that was read before. If whose is nil, nobody wants to know of calls.
func (p *peek) scan(b []byte, whose look) {
	p.calls, p.next, p.read = p.calls[:0], 0, len(b)
	if whose == nil {
		p.calls = nil
	}
	for len(b) > 0 {
		if p.frames.skip == 0 {
			var complete bool
			if b, complete = p.frames.open(b); !complete {
				return
			}
			p.begin(b, whose)
		}
		var ends bool
		if b, ends = p.frames.pass(b); ends && p.ends {
			p.ends = false
			if whose != nil && len(p.calls) < mostPeeked {
				p.calls = append(p.calls, peeked{stream: p.frames.stream(), head: p.head})
			}
			p.head, p.newest = span{}, max(p.newest, p.frames.stream())
		}
	}
}

// begin begins the frame whose header has come; rest is what was read after that.
func (p *peek) begin(rest []byte, whose look) {
	switch kind, flags := p.frames.kind(), p.frames.flags(); {
	case kind == frameHeaders, kind == frameContinuation:
		p.ends = flags&flagEndHeaders != 0
		if whose != nil && kind == frameHeaders && flags == flagEndHeaders && p.frames.stream() > p.newest && p.frames.skip <= len(rest) && stateless(rest[:p.frames.skip]) {
			p.head = p.span(rest)
		}
	case kind == frameSettings && flags&flagAck == 0:
		p.tables = p.tables || p.frames.skip > len(rest) || setsTable(rest[:p.frames.skip])
	case kind == frameData && p.frames.skip > 0 && whose != nil:
		c := p.unsettled()
		if c == nil {
			return
		}
		c.settled = true
		if flags&flagPadded == 0 && p.frames.skip <= len(rest) && whole(rest[:p.frames.skip]) {
			c.known, c.seen = true, whose(rest[messageHeaderSize:p.frames.skip])
			if flags&flagEndStream != 0 {
				c.message = p.span(rest)
			}
		}
	}
}

// span returns where the frame is that has begun, of which rest has all that follows its header; an empty one if not all of it has been
// read at once.
func (p *peek) span(rest []byte) span {
	at := p.read - len(rest)
	if at < frameHeaderSize {
		return span{}
	}
	return span{at - frameHeaderSize, at + p.frames.skip}
}

// unsettled returns the call to which the frame belongs that begins, if it is the first one of its message.
func (p *peek) unsettled() *peeked {
	stream := p.frames.stream()
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

// peekedConn is a connection whose peek sees what is read, from which calls are culled, and which waits while others are worked on.
type peekedConn struct {
	net.Conn

	of      *boundedConn
	service *Service
	answers *answers
}

// Read implements net.Conn. It returns what has been read without the calls that were culled.
func (c peekedConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if n == 0 {
			return n, err
		}
		gate, p := c.service.config.Gate, &c.of.peek
		if gate.Limited() {
			p.scan(b[:n], c.service.seen)
			n = c.cull(b[:n])
		} else {
			p.scan(b[:n], nil)
		}
		if n == 0 && err == nil { // all of it
			if c.answers.room() < mostPeeked {
				runtime.Gosched() // so that they are written, and others run
			}
			continue
		}
		first := slices.ContainsFunc(p.calls, func(x peeked) bool { return x.known && gate.Under(x.seen.Domain) })
		gate.AwaitRead(&c.of.client, overload.Read{Size: n, Full: c.of.full, First: first})
		return n, err
	}
}

// Write implements net.Conn.
func (c peekedConn) Write(b []byte) (int, error) { return c.answers.write(b) }

// Close implements net.Conn.
func (c peekedConn) Close() error {
	err := c.Conn.Close()
	c.answers.close()
	return err
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
		secured = peekedConn{secured, a.conn, h.service, &answers{culling: h.service.culling, conn: secured}}
	}
	return secured, info, nil
}
