package rls

import (
	"encoding/binary"
	"sync"

	"github.com/ratelimitd/ratelimitd/internal/overload"
)

// What peek knows of HTTP/2 (RFC 9113), and of gRPC over it.
const (
	prefaceSize       = 24 // what a client begins with
	frameHeaderSize   = 9
	frameKindAt       = 3 // in a header
	frameData         = 0x0
	frameHeaders      = 0x1
	frameSettings     = 0x4
	framePing         = 0x6
	frameWindow       = 0x8
	frameContinuation = 0x9
	flagEndStream     = 0x1 // of HEADERS and DATA
	flagAck           = 0x1 // of SETTINGS and PING
	flagEndHeaders    = 0x4 // of HEADERS and CONTINUATION
	flagPadded        = 0x8 // of DATA
	streamBits        = 1<<31 - 1
	pingSize          = 8
	messageHeaderSize = 5 // of a message: whether it is compressed, and its size
)

const (
	mostPeeked = 128 // calls that peek remembers of one read
	keptFrames = 16  // for which a connection keeps memory
)

// peekedCalls has memory for what connections remember of their calls: most of them have nothing to remember.
var peekedCalls = sync.Pool{New: func() any { return new([mostPeeked]peeked) }} //nolint:gochecknoglobals // memory, and no state

// hint is what a message says of its call.
type hint struct {
	overload.Seen

	fails bool // policies can but fail it
}

// look returns it.
type look func(message []byte) hint

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
func (f *frames) kind() byte  { return f.header[frameKindAt] }
func (f *frames) flags() byte { return f.header[4] }

// heading reports whether it is one of headers that go on in the next frame.
func (f *frames) heading() bool {
	return (f.kind() == frameHeaders || f.kind() == frameContinuation) && f.flags()&flagEndHeaders == 0
}

// free reports whether a frame may begin that has nothing to do with the one before.
func (f *frames) free() bool { return f.between() && !f.heading() }

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
	read   int                 // bytes of what was read last
	ends   bool                // with the frame that is open the headers of a call end
	head   span                // where that is, if it is all that there is of them, and stateless
	newest uint32              // stream whose headers have been read
	memory *[mostPeeked]peeked // of calls; nil if there are none
	calls  []peeked
	next   int
	tables bool // the client has set the size of the table of headers, which the headers that are written next have to begin with
	window window
	taken  []span // frames of what was read last that grpc must not have; pings are to be answered
	culled int    // calls, less the pings that have been kept from grpc since; mostPeeked at most
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
	seen    hint

	// Its frames, if that is all of them, and grpc need not know of them.
	head, message span
}

// text returns the message of a call whose frames are known, which was read in b.
func (x *peeked) text(b []byte) []byte {
	return b[x.message.from+frameHeaderSize+messageHeaderSize : x.message.to]
}

// cuttable reports whether grpc need not know of a call.
func (x *peeked) cuttable() bool {
	return x.known && x.head.to > 0 && x.message.to > 0 && x.stream&1 > 0
}

// take returns what is known of the next call, if anything is. It must be called for each that grpc asks about.
func (p *peek) take() (seen overload.Seen, known bool) {
	if p.next >= len(p.calls) {
		return seen, false
	}
	c := &p.calls[p.next]
	seen, known = c.seen.Seen, c.known
	if p.next++; p.next == len(p.calls) {
		p.forget()
	}
	return seen, known
}

// remember appends a call to those that were read last.
func (p *peek) remember(c peeked) {
	if p.memory == nil {
		p.memory = peekedCalls.Get().(*[mostPeeked]peeked)
		p.calls = p.memory[:0]
	}
	p.calls = append(p.calls, c)
}

// forget forgets the calls that were read last.
func (p *peek) forget() {
	if p.memory != nil {
		peekedCalls.Put(p.memory)
	}
	p.memory, p.calls, p.next = nil, nil, 0
}

// scan looks at what has been read, once grpc has worked on all that was read before. If whose is nil, nobody wants to know of calls.
func (p *peek) scan(b []byte, whose look) {
	p.forget()
	p.read, p.taken = len(b), p.taken[:0]
	if cap(p.taken) > keptFrames {
		p.taken = nil
	}
	for len(b) > 0 {
		if p.frames.skip == 0 {
			var complete bool
			if b, complete = p.frames.open(b); !complete {
				return
			}
			p.begin(b, whose)
		}
		p.window.gather(b)
		var ends bool
		if b, ends = p.frames.pass(b); ends && p.ends {
			p.ends = false
			if whose != nil && len(p.calls) < mostPeeked {
				p.remember(peeked{stream: p.frames.stream(), head: p.head})
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
		p.window.set(rest[:min(p.frames.skip, len(rest))])
	case kind == frameWindow && p.frames.stream() == 0 && p.frames.skip == windowSize:
		if at := p.span(rest); at.to == 0 || len(rest) < windowSize {
			p.window.splits()
		} else if p.window.opens(rest[:windowSize], p.newest == 0 && !p.tables) {
			p.taken = append(p.taken, at)
		}
	case kind == framePing && p.culled > 0 && flags&flagAck == 0 && p.frames.stream() == 0 && p.frames.skip == pingSize && len(rest) >= pingSize:
		if at := p.span(rest); at.to > 0 { // grpc would take it for one too many, as it does not know of the answers since the last
			p.culled, p.taken = p.culled-1, append(p.taken, at)
		}
	case kind == frameData && p.frames.skip > 0 && whose != nil:
		p.beginData(rest, whose)
	}
}

// beginData begins a frame of a message.
func (p *peek) beginData(rest []byte, whose look) {
	c, flags := p.unsettled(), p.frames.flags()
	if c == nil {
		return
	}
	c.settled = true
	if flags&flagPadded != 0 || p.frames.skip > len(rest) || !whole(rest[:p.frames.skip]) {
		return
	}
	c.known, c.seen = true, whose(rest[messageHeaderSize:p.frames.skip])
	if flags&flagEndStream != 0 {
		c.message = p.span(rest)
	}
	c.seen.Cheap = c.cuttable() && !p.tables && (c.seen.fails || p.window.open())
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

// seen returns what is known of the call that begins, if anything is. It must be called once for each.
func (o origin) seen() (seen overload.Seen, known bool) {
	if o.conn == nil {
		return seen, false
	}
	return o.conn.peek.take()
}
