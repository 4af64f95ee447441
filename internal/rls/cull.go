package rls

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"net"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/overload"
)

// What is known of the compression of headers (RFC 7541): how what stands for one of them begins, and where the names of paths are.
const (
	indexed       = 0x80 // one of a table, in 7 bits
	indexing      = 0x40 // written out, and put into the table
	sizeUpdate    = 0x20 // of the table
	tableSize     = 4096 // unless a client sets another one
	huffman       = 0x80 // of a string
	pathIndex     = 4    // and the one after it
	settingSize   = 6
	settingsTable = 1 // the setting of tableSize
)

// mostAnswers is how many answers to calls that were culled may wait to be written. If a client does not read them, grpc has its further
// calls.
const mostAnswers = 512

// codedMethod is fullMethod in Huffman's code, as most clients write it.
const codedMethod = "\x60\xb5\x77\x3f\xa5\xd0\x5b\x3b\x98\x85\x5e\xc1\xa4\xb4\x1a\x93\x25\x7e\xec\xaf\xb4\x69\x2e\x73\x52\x64\xee\x2d\x9d\xcc\x42" +
	"\xb1\xba\x73\xdb\x44\x9b\x46\x92\xe7\x35\x26\x4f"

// culling is what culling takes, whatever the connection.
type culling struct {
	answer  []byte    // headers that say errOverload
	buffers sync.Pool // of *[]byte, for answers that wait to be written
}

// newCulling returns one. Its answer neither uses nor changes the table of headers, so it may come between any two of what grpc writes.
func newCulling() *culling {
	var b bytes.Buffer
	e, s := hpack.NewEncoder(&b), status.Convert(errOverload)
	for _, f := range []hpack.HeaderField{
		{Name: ":status", Value: "200"}, // which has a number of its own
		{Name: "content-type", Value: "application/grpc", Sensitive: true},
		{Name: "grpc-status", Value: strconv.Itoa(int(s.Code())), Sensitive: true},
		{Name: "grpc-message", Value: s.Message(), Sensitive: true},
	} {
		_ = e.WriteField(f) // a buffer takes everything
	}
	return &culling{answer: b.Bytes(), buffers: sync.Pool{New: func() any { return new([]byte) }}}
}

// stateless reports whether headers are those of a call of ShouldRateLimit, and whoever reads the next ones need not have read them: they put
// nothing into the table. Envoy's are, but for the first on a connection: it always writes paths out, and the others are in the
// table by then.
func stateless(block []byte) bool {
	own := false
	for len(block) > 0 {
		first := block[0]
		switch {
		case first&indexed != 0:
			if _, block = integer(block, 7); block == nil {
				return false
			}
			continue
		case first&(indexing|sizeUpdate) != 0:
			return false
		}
		name, rest := integer(block, 4)
		if name == 0 && rest != nil {
			_, _, rest = stringOf(rest)
		}
		if rest == nil {
			return false
		}
		value, coded, rest := stringOf(rest)
		if rest == nil {
			return false
		}
		if name == pathIndex || name == pathIndex+1 {
			if own || !isOwn(value, coded) {
				return false
			}
			own = true
		}
		block = rest
	}
	return own
}

func isOwn(path []byte, coded bool) bool {
	if coded {
		return string(path) == codedMethod
	}
	return string(path) == fullMethod
}

// integer reads one that begins in the last bits of b, and returns what follows, nil if there is none.
func integer(b []byte, bits int) (n int, rest []byte) {
	most := 1<<bits - 1
	if n = int(b[0]) & most; n < most {
		return n, b[1:]
	}
	for i, c := range b[1:min(len(b), 4)] {
		n += int(c&0x7f) << (7 * i)
		if c&0x80 == 0 {
			return n, b[i+2:]
		}
	}
	return 0, nil
}

// stringOf reads a string, and returns what follows, nil if there is none.
func stringOf(b []byte) (s []byte, coded bool, rest []byte) {
	if len(b) == 0 {
		return nil, false, nil
	}
	n, rest := integer(b, 7)
	if rest == nil || n > len(rest) {
		return nil, false, nil
	}
	return rest[:n], b[0]&huffman != 0, rest[n:]
}

// setsTable reports whether settings change the size of the table of headers. Then what is written first has to tell.
func setsTable(settings []byte) bool {
	for ; len(settings) >= settingSize; settings = settings[settingSize:] {
		if binary.BigEndian.Uint16(settings) == settingsTable && binary.BigEndian.Uint32(settings[2:]) != tableSize {
			return true
		}
	}
	return false
}

// cull takes calls for which there is no time out of what has been read, and answers them: for grpc to do that takes ten times as long, and
// where most of what is asked for is too much, it would take the time of all else. It returns how much is left.
func (c peekedConn) cull(b []byte) (left int) {
	gate, room := c.service.config.Gate, c.answers.room()
	out := c.of.peek.pick(room, func(seen *overload.Seen, coming int) bool { return gate.Full(&c.of.client, seen, coming) })
	if len(out.streams) == 0 {
		return len(b)
	}
	for range out.streams {
		c.service.config.Hooks.Shed()
	}
	c.answers.refuse(out)
	return remove(b, out.frames)
}

// picked is calls that grpc is not to know of.
type picked struct {
	streams []uint32
	frames  []span
	credit  int // bytes of their messages, which their client may send again
}

// pick takes calls that are full out of what was peeked at, of those of which grpc need not know, and at most so many.
func (p *peek) pick(most int, full func(seen *overload.Seen, coming int) bool) (out picked) {
	kept := p.calls[:0]
	coming := 0
	for _, x := range p.calls {
		switch {
		case p.tables || !x.known || x.head.to == 0 || x.message.to == 0 || x.stream&1 == 0 || len(out.streams) >= most:
		case full(&x.seen, coming):
			out.streams = append(out.streams, x.stream)
			out.frames = append(out.frames, x.head, x.message)
			out.credit += x.message.to - x.message.from - frameHeaderSize
			continue
		default:
			x.seen.Asked = true
			coming++
		}
		kept = append(kept, x)
	}
	p.calls = kept
	return out
}

// remove removes parts of b, and returns how much is left.
func remove(b []byte, parts []span) (left int) {
	slices.SortFunc(parts, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	left = parts[0].from
	for i, part := range parts {
		end := len(b)
		if i+1 < len(parts) {
			end = parts[i+1].from
		}
		left += copy(b[left:], b[part.to:end])
	}
	return left
}

// answers writes what grpc writes on a connection, and between two frames of that the answers to calls that were culled.
type answers struct {
	culling *culling
	conn    net.Conn

	writing sync.Mutex // guards what follows, and the order of what is written
	frames  frames

	mu      sync.Mutex
	waiting *[]byte // to be written, by somebody who is about to; nil if nothing is
}

// room returns how many more may wait.
func (a *answers) room() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting == nil {
		return mostAnswers
	}
	return mostAnswers - len(*a.waiting)/(frameHeaderSize+len(a.culling.answer))
}

// refuse answers calls that were culled.
func (a *answers) refuse(calls picked) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting == nil {
		a.waiting = a.culling.buffers.Get().(*[]byte)
		go a.flush() // who reads must not wait for somebody who does not
	}
	b := appendFrame(*a.waiting, frameWindow, 0, 0, binary.BigEndian.AppendUint32(nil, uint32(calls.credit))) //nolint:gosec // no more than was read at once
	for _, stream := range calls.streams {
		b = appendFrame(b, frameHeaders, flagEndHeaders|flagEndStream, stream, a.culling.answer)
	}
	*a.waiting = b
}

// appendFrame appends a frame, of less than 64 KiB.
func appendFrame(b []byte, kind, flags byte, stream uint32, payload []byte) []byte {
	b = append(b, 0, byte(len(payload)>>8), byte(len(payload)), kind, flags)
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// flush writes what waits, unless grpc is in the middle of a frame: then it is written after that.
func (a *answers) flush() {
	a.writing.Lock()
	defer a.writing.Unlock()
	a.between()
}

// between writes what waits if a frame may begin.
func (a *answers) between() {
	if !a.frames.between() {
		return
	}
	a.mu.Lock()
	b := a.waiting
	a.waiting = nil
	a.mu.Unlock()
	if b == nil {
		return
	}
	_, _ = a.conn.Write(*b) // grpc finds out by itself
	*b = (*b)[:0]
	a.culling.buffers.Put(b)
}

// write writes what grpc does.
func (a *answers) write(b []byte) (int, error) {
	a.writing.Lock()
	defer a.writing.Unlock()
	n, err := a.conn.Write(b)
	for rest := b[:n]; len(rest) > 0; rest, _ = a.frames.pass(rest) {
		if a.frames.skip == 0 {
			var complete bool
			if rest, complete = a.frames.open(rest); !complete {
				break
			}
		}
	}
	if err == nil {
		a.between()
	}
	return n, err
}
