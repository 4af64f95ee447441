package rls

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// How much of answers to calls that were culled may wait to be written, in bytes. If clients do not read them, grpc has their further calls.
const (
	mostAnswers    = 64 << 10 // to one connection
	mostAllAnswers = 16 << 20 // to all, but that each may have
	leastAnswers   = 2 << 10  // in any case: nobody's calls are given to grpc because others do not read
	leastRoom      = 256      // of that for a call to be culled; a refusal takes half of it
	pooledAnswers  = 32 << 10 // a buffer that is kept for others
)

const (
	writingTime = 10 * time.Millisecond // for which reading a connection waits for what is to be written to it
	stuckTime   = 10 * time.Second      // in which a client must have read those of its answers that are written at once
)

const maxFrame = 16 << 10 // the largest payload of a frame that every client takes

// culling is what culling takes, whatever the connection. Its headers neither use nor change the table of headers, so they may stand between
// any two that grpc writes.
type culling struct {
	refusal []byte       // headers that say errOverload
	head    []byte       // those of an answer
	trailer []byte       // what follows it
	around  int          // bytes of all that is written with a message
	buffers sync.Pool    // of *[]byte, for answers that wait to be written
	replies sync.Pool    // of *replies
	waiting atomic.Int64 // bytes of them that do
}

// newCulling returns what culling takes.
func newCulling() *culling {
	s := status.Convert(errOverload)
	field := func(name, value string) hpack.HeaderField {
		return hpack.HeaderField{Name: name, Value: value, Sensitive: true}
	}
	code := func(c codes.Code) hpack.HeaderField { return field("grpc-status", strconv.Itoa(int(c))) }
	head := []hpack.HeaderField{{Name: ":status", Value: "200"}, field("content-type", "application/grpc")} // the first has a number of its own
	c := &culling{
		refusal: headBlock(append(head, code(s.Code()), field("grpc-message", s.Message()))...),
		head:    headBlock(head...),
		trailer: headBlock(code(codes.OK)),
		buffers: sync.Pool{New: func() any { return new([]byte) }},
		replies: sync.Pool{New: func() any { return &replies{answer: new(answer)} }},
	}
	c.around = len(c.appendAnswer(nil, 1, nil))
	return c
}

func headBlock(fields ...hpack.HeaderField) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, f := range fields {
		_ = e.WriteField(f) // a buffer takes everything
	}
	return b.Bytes()
}

// begin returns a buffer for answers to calls whose client may send so many bytes again.
func (c *culling) begin(credit int) *[]byte {
	b := c.buffers.Get().(*[]byte)
	*b = appendWindow((*b)[:0], credit)
	return b
}

// pongs returns the answers to those frames of what was read that are pings; nil if none is.
func (c *culling) pongs(read []byte, frames []span) (out *[]byte) {
	for _, at := range frames {
		if read[at.from+frameKindAt] != framePing {
			continue
		}
		if out == nil {
			out = c.buffers.Get().(*[]byte)
			*out = (*out)[:0]
		}
		*out = appendFrame(*out, framePing, flagAck, 0, read[at.from+frameHeaderSize:at.to])
	}
	return out
}

// end takes a buffer back.
func (c *culling) end(b *[]byte) {
	if cap(*b) <= pooledAnswers {
		c.buffers.Put(b)
	}
}

// fit returns a buffer with the contents of b that is not much larger: who does not read may have it wait for long.
func (c *culling) fit(b *[]byte) *[]byte {
	if cap(*b) <= 4*len(*b) {
		return b
	}
	fitting := bytes.Clone(*b)
	c.end(b)
	return &fitting
}

// appendRefusal appends the refusal of a call.
func (c *culling) appendRefusal(b []byte, stream uint32) []byte {
	return appendFrame(b, frameHeaders, flagEndHeaders|flagEndStream, stream, c.refusal)
}

// appendAnswer appends a message that answers a call. It must fit into a frame.
func (c *culling) appendAnswer(b []byte, stream uint32, message []byte) []byte {
	b = appendFrame(b, frameHeaders, flagEndHeaders, stream, c.head)
	b = appendFrameHeader(b, frameData, 0, stream, messageHeaderSize+len(message))
	b = binary.BigEndian.AppendUint32(append(b, 0), uint32(len(message))) //nolint:gosec // it fits
	b = append(b, message...)
	return appendFrame(b, frameHeaders, flagEndHeaders|flagEndStream, stream, c.trailer)
}

// appendWindow appends a frame that says that so many bytes more may be sent on a connection.
func appendWindow(b []byte, more int) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHeader(b, frameWindow, 0, 0, windowSize), uint32(more)) //nolint:gosec // no more than was read at once, or is kept
}

// appendFrame appends a frame, of less than 64 KiB.
func appendFrame(b []byte, kind, flags byte, stream uint32, payload []byte) []byte {
	return append(appendFrameHeader(b, kind, flags, stream, len(payload)), payload...)
}

func appendFrameHeader(b []byte, kind, flags byte, stream uint32, size int) []byte {
	return binary.BigEndian.AppendUint32(append(b, 0, byte(size>>8), byte(size), kind, flags), stream)
}

// answers writes what grpc writes on a connection, and between two frames of that the answers to calls that were culled.
type answers struct {
	culling *culling
	conn    net.Conn

	writing sync.Mutex // guards what follows, and the order of what is written
	frames  frames

	some atomic.Bool // wait to be written, and nobody has begun to

	// Who reads sets due and then looks at data; who writes adds to data and then looks at due, so that one of them sees it.
	data   atomic.Int64 // bytes that grpc has written which count for flow control
	due    atomic.Int64 // when these are so many, reading is to end; math.MaxInt64 if it need not
	waking sync.Mutex   // guards wake, and the deadline for reading
	wake   bool         // which is past

	freed chan struct{} // some have been written

	mu      sync.Mutex
	waiting *[]byte // to be written, by somebody who is about to; nil if nothing is
	owed    int     // bytes of all that have not been written
	closed  bool
	stuck   *time.Timer // runs while there are any; nil before
	since   time.Time   // when it was last set
}

// newAnswers returns the answers of a connection to which nothing has been written.
func newAnswers(c *culling, conn net.Conn) *answers {
	a := &answers{culling: c, conn: conn, freed: make(chan struct{}, 1)}
	a.due.Store(math.MaxInt64)
	return a
}

// woken reports whether reading has ended with err because of due, and has it go on.
func (a *answers) woken(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	a.waking.Lock()
	defer a.waking.Unlock()
	if !a.wake {
		return false
	}
	a.wake = false
	return a.conn.SetReadDeadline(time.Time{}) == nil
}

// abandon closes a connection for which what was to be written at once was not in all that time: it would take the room of others'.
func (a *answers) abandon() {
	a.mu.Lock()
	stuck := a.owed > 0 && time.Since(a.since) >= stuckTime
	a.mu.Unlock()
	if stuck {
		_ = a.conn.Close() // grpc finds out by itself
	}
}

// await waits while so much waits to be written that there is soon no room for more, but not for long: where thousands of calls wait for a
// processor, so does who writes, and meanwhile no more of them should be read.
func (a *answers) await() {
	if !a.crowded() {
		return
	}
	late := time.NewTimer(writingTime)
	defer late.Stop()
	for a.crowded() {
		select {
		case <-a.freed:
		case <-late.C:
			return
		}
	}
}

// crowded reports whether much waits, whatever does on other connections.
func (a *answers) crowded() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.owed > mostAnswers/2
}

// room returns how many more bytes may wait.
func (a *answers) room() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(min(mostAnswers-a.owed, mostAllAnswers-int(a.culling.waiting.Load())), leastAnswers-a.owed)
}

// send has answers written, which come from [culling.begin].
func (a *answers) send(b *[]byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	if a.owed == 0 {
		a.watch()
	}
	a.owe(len(*b))
	if a.waiting != nil {
		*a.waiting = append(*a.waiting, *b...)
		a.culling.end(b)
		return
	}
	a.waiting = a.culling.fit(b)
	a.some.Store(true)
	go a.flush() // who reads must not wait for somebody who does not
}

// watch begins anew to wait for its client to read. mu must be held.
func (a *answers) watch() {
	a.since = time.Now()
	if a.stuck == nil {
		a.stuck = time.AfterFunc(stuckTime, a.abandon)
	} else {
		a.stuck.Reset(stuckTime)
	}
}

// owe counts bytes that wait, or no longer do. mu must be held.
func (a *answers) owe(n int) {
	a.owed += n
	a.culling.waiting.Add(int64(n))
}

// flush writes what waits, unless grpc is in the middle of something: then it is written after that.
func (a *answers) flush() {
	a.writing.Lock()
	defer a.writing.Unlock()
	a.between()
}

// between writes what waits if a frame may begin that has nothing to do with the one before.
func (a *answers) between() {
	if !a.frames.free() || !a.some.Load() {
		return
	}
	b := a.take()
	if b == nil {
		return
	}
	_, _ = a.conn.Write(*b) // grpc finds out by itself
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.owe(-len(*b)); a.owed > 0 {
		a.watch()
	} else {
		a.stuck.Stop()
	}
	a.culling.end(b)
	select {
	case a.freed <- struct{}{}:
	default:
	}
}

// take takes what waits; nil if nothing does.
func (a *answers) take() *[]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.taken()
}

// taken is take where mu is held.
func (a *answers) taken() *[]byte {
	b := a.waiting
	a.waiting = nil
	a.some.Store(false)
	return b
}

// write writes what grpc does. What waits goes as soon as it may: grpc may be about to say which streams it has taken up, or that it heeds
// new settings, or may have more to write without end.
func (a *answers) write(b []byte) (n int, err error) {
	a.writing.Lock()
	defer a.writing.Unlock()
	if a.some.Load() {
		if end := a.boundary(b); end > 0 {
			if n, err = a.put(b[:end]); err != nil {
				return n, err
			}
		}
		a.between()
	}
	if n < len(b) {
		var more int
		more, err = a.put(b[n:])
		n += more
	}
	if err == nil {
		a.between()
	}
	return n, err
}

// boundary returns where in b the first frame may begin that is not grpc's; the end of it if none may.
func (a *answers) boundary(b []byte) int {
	f, rest := a.frames, b
	for len(rest) > 0 && !f.free() {
		if f.skip > 0 {
			rest, _ = f.pass(rest)
		} else {
			rest, _ = f.open(rest)
		}
	}
	return len(b) - len(rest)
}

// put writes b, and follows its frames.
func (a *answers) put(b []byte) (int, error) {
	n, err := a.conn.Write(b)
	for rest := b[:n]; len(rest) > 0; rest, _ = a.frames.pass(rest) {
		if a.frames.skip > 0 {
			continue
		}
		var complete bool
		if rest, complete = a.frames.open(rest); !complete {
			break
		}
		if a.frames.kind() == frameData {
			a.count(a.frames.skip)
		}
	}
	return n, err
}

// count counts n bytes that grpc sends, and has reading end when that is due.
func (a *answers) count(n int) {
	data := a.data.Add(int64(n))
	if due := a.due.Load(); data < due || !a.due.CompareAndSwap(due, math.MaxInt64) {
		return // if due is another by now, who has set it has seen this
	}
	a.waking.Lock()
	defer a.waking.Unlock()
	a.wake = a.conn.SetReadDeadline(time.Unix(1, 0)) == nil
}

// close drops what waits, and what comes after: the connection is closed.
func (a *answers) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if b := a.taken(); b != nil {
		a.owe(-len(*b))
	}
	if a.stuck != nil {
		a.stuck.Stop()
	}
}
