package rls

import (
	"bytes"
	"encoding/binary"
	"net"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/status"
)

// How many answers to calls that were culled may wait to be written, of about 100 bytes each. If clients do not read them, grpc has their
// further calls.
const (
	mostAnswers    = 256     // to one connection
	mostAllAnswers = 100_000 // to all
)

// culling is what culling takes, whatever the connection.
type culling struct {
	answer  []byte       // headers that say errOverload
	buffers sync.Pool    // of *[]byte, for answers that wait to be written
	waiting atomic.Int64 // answers that do
}

// newCulling returns what culling takes. Its answer neither uses nor changes the table of headers, so it may stand between any two that grpc
// writes.
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

// answers writes what grpc writes on a connection, and between two frames of that the answers to calls that were culled.
type answers struct {
	culling *culling
	conn    net.Conn

	writing sync.Mutex // guards what follows, and the order of what is written
	frames  frames
	heading bool // the headers that were written last go on in the next frame

	some atomic.Bool // wait to be written, and nobody has begun to

	mu      sync.Mutex
	waiting *[]byte // to be written, by somebody who is about to; nil if nothing is
	count   int     // of answers in it
	owed    int     // of all that have not been written
	closed  bool
}

// room returns how many more may wait.
func (a *answers) room() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return min(mostAnswers-a.owed, mostAllAnswers-int(a.culling.waiting.Load()))
}

// refuse answers calls that were culled.
func (a *answers) refuse(calls picked) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	if a.waiting == nil {
		a.waiting = a.culling.buffers.Get().(*[]byte)
		a.some.Store(true)
		go a.flush() // who reads must not wait for somebody who does not
	}
	b := appendFrame(*a.waiting, frameWindow, 0, 0, binary.BigEndian.AppendUint32(nil, uint32(calls.credit))) //nolint:gosec // no more than was read at once
	for _, stream := range calls.streams {
		b = appendFrame(b, frameHeaders, flagEndHeaders|flagEndStream, stream, a.culling.answer)
	}
	*a.waiting = b
	a.owe(len(calls.streams))
	a.count += len(calls.streams)
}

// owe counts answers that wait, or no longer do. mu must be held.
func (a *answers) owe(n int) {
	a.owed += n
	a.culling.waiting.Add(int64(n))
}

// appendFrame appends a frame, of less than 64 KiB.
func appendFrame(b []byte, kind, flags byte, stream uint32, payload []byte) []byte {
	b = append(b, 0, byte(len(payload)>>8), byte(len(payload)), kind, flags)
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// flush writes what waits, unless grpc is in the middle of something: then it is written after that.
func (a *answers) flush() {
	a.writing.Lock()
	defer a.writing.Unlock()
	a.between()
}

// between writes what waits if a frame may begin that has nothing to do with the one before.
func (a *answers) between() {
	if a.heading || !a.frames.between() || !a.some.Load() {
		return
	}
	b, n := a.take()
	if b == nil {
		return
	}
	_, _ = a.conn.Write(*b) // grpc finds out by itself
	*b = (*b)[:0]
	a.culling.buffers.Put(b)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.owe(-n)
}

// take takes what waits.
func (a *answers) take() (b *[]byte, count int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b, count = a.waiting, a.count
	a.waiting, a.count = nil, 0
	a.some.Store(false)
	return b, count
}

// write writes what grpc does.
func (a *answers) write(b []byte) (int, error) {
	a.writing.Lock()
	defer a.writing.Unlock()
	n, err := a.conn.Write(b)
	for rest := b[:n]; len(rest) > 0; rest, _ = a.frames.pass(rest) {
		if a.frames.skip > 0 {
			continue
		}
		var complete bool
		if rest, complete = a.frames.open(rest); !complete {
			break
		}
		a.heading = a.frames.heading()
	}
	if err == nil {
		a.between()
	}
	return n, err
}

// close drops what waits: the connection is closed.
func (a *answers) close() {
	_, n := a.take()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.owe(-n)
}
