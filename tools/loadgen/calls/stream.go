package calls

import (
	"bufio"
	"context"
	"io"
	"net"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

// stream is an HTTP/2 connection, used for calls of ShouldRateLimit.
type stream struct {
	lane *lane
	conn net.Conn
	r    *bufio.Reader
	fr   *http2.Framer
	done chan struct{} // closed when reading has ended

	release func() bool // detaches conn from the end of the load

	dec  *hpack.Decoder // of answers; used only by read
	code codes.Code     // status code that dec has found

	wmu  sync.Mutex // guards writing; lock before mu
	w    *bufio.Writer
	head *head

	mu      sync.Mutex // guards the following fields
	open    map[uint32]*call
	order   []uint32 // IDs of calls, oldest first, including ended ones
	next    uint32
	window  int64 // bytes that may still be sent
	most    int   // maximum number of open calls
	leaving bool  // no new calls on this stream
	broken  bool
}

// call is a call that was sent.
type call struct {
	pending

	answered bool
	kind     Kind
}

const (
	dialTime    = time.Second
	closeTime   = 3 * time.Second
	buffer      = 64 << 10
	firstWindow = 65535
	mostStreams = 1 << 30
	tableSize   = 4096 // dynamic table in bytes, as in Envoy and grpc-go
)

// connect opens a connection. It closes soon after ctx is done, because a write to a server that does not read would never
// return.
func connect(ctx context.Context, a *lane) (*stream, error) {
	conn, err := net.DialTimeout(a.load.Network, a.load.Addr, dialTime) //nolint:noctx // has its own time-out
	if err != nil {
		return nil, err
	}
	s := &stream{
		lane: a, conn: conn, head: newHead(a.load.Timeout),
		open: map[uint32]*call{}, next: 1, window: firstWindow, most: mostStreams, done: make(chan struct{}),
	}
	s.dec = hpack.NewDecoder(tableSize, func(f hpack.HeaderField) {
		if f.Name == "grpc-status" {
			n, _ := strconv.ParseUint(f.Value, 10, 8)
			s.code = codes.Code(n)
		}
	})
	s.w = bufio.NewWriterSize(conn, buffer)
	s.r = bufio.NewReaderSize(conn, buffer)
	s.fr = http2.NewFramer(s.w, s.r)
	s.fr.SetReuseFrames()
	_, err = io.WriteString(s.w, http2.ClientPreface)
	if err == nil {
		err = s.fr.WriteSettings(
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1},
			http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	}
	if err == nil {
		err = s.fr.WriteWindowUpdate(0, 1<<30)
	}
	if err == nil {
		err = s.w.Flush()
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	s.release = context.AfterFunc(ctx, func() {
		select {
		case <-time.After(closeTime):
			s.close()
		case <-s.done:
		}
	})
	go s.read()
	return s, nil
}

func (s *stream) usable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.leaving && !s.broken
}

// over reports whether the stream has ended.
func (s *stream) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken && len(s.open) == 0
}

func (s *stream) close() { _ = s.conn.Close() }

// finish closes the connection, and waits until its calls have ended.
func (s *stream) finish() {
	s.close()
	<-s.done
}

// write sends calls, and returns the number that the connection accepted.
func (s *stream) write(calls []pending) (sent int) {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	for _, p := range calls {
		body := s.lane.load.Requests[p.what]
		s.mu.Lock()
		if s.broken || s.leaving || len(s.open) >= s.most || s.window < int64(len(body)) || s.next > 1<<30 {
			s.leaving = s.leaving || s.next > 1<<30
			s.mu.Unlock()
			break
		}
		id := s.next
		s.next += 2
		s.window -= int64(len(body))
		s.open[id] = &call{pending: p}
		s.order = append(s.order, id)
		s.lane.open.Add(1)
		s.mu.Unlock()
		sent++
		// read detects write errors.
		_ = s.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: s.head.block(), EndHeaders: true})
		_ = s.fr.WriteData(id, true, body)
	}
	_ = s.w.Flush()
	return sent
}

// cancel cancels calls that were due before a time.
func (s *stream) cancel(before time.Duration) {
	var gone []uint32
	var which []*call
	s.mu.Lock()
	for len(s.order) > 0 {
		id := s.order[0]
		if c, found := s.open[id]; found {
			if c.due > before {
				break
			}
			delete(s.open, id)
			gone, which = append(gone, id), append(which, c)
		}
		s.order = s.order[1:]
	}
	s.mu.Unlock()
	if len(gone) == 0 {
		return
	}
	now := s.lane.load.now()
	for _, c := range which {
		s.lane.ended(Outcome{Due: c.due, What: c.what, Took: now - c.due, Lag: c.lag, Kind: Late})
	}
	s.wmu.Lock()
	defer s.wmu.Unlock()
	for _, id := range gone {
		_ = s.fr.WriteRSTStream(id, http2.ErrCodeCancel)
	}
	_ = s.w.Flush()
}

// end records the end of a call.
func (s *stream) end(id uint32, k Kind, code codes.Code) {
	s.mu.Lock()
	c, found := s.open[id]
	delete(s.open, id)
	s.mu.Unlock()
	if found {
		s.lane.ended(Outcome{Due: c.due, What: c.what, Took: s.lane.load.now() - c.due, Lag: c.lag, Kind: k, Code: code})
	}
}

// read reads answers until the connection breaks.
func (s *stream) read() {
	defer s.breakUp()
	var credit uint32
	for {
		if s.r.Buffered() == 0 {
			runtime.Gosched() // otherwise, a busy reader delays sending by 10 ms
		}
		f, err := s.fr.ReadFrame()
		if err != nil {
			return
		}
		switch f := f.(type) {
		case *http2.DataFrame:
			s.answer(f)
			if credit += f.Length; credit > 1<<24 {
				s.reply(func() { _ = s.fr.WriteWindowUpdate(0, credit) })
				credit = 0
			}
		case *http2.HeadersFrame:
			if !s.headers(f) {
				return
			}
		case *http2.RSTStreamFrame:
			s.end(f.StreamID, Reset, codes.Unavailable)
		case *http2.WindowUpdateFrame:
			if f.StreamID == 0 {
				s.mu.Lock()
				s.window += int64(f.Increment)
				s.mu.Unlock()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				s.reply(func() { _ = s.fr.WritePing(true, f.Data) })
			}
		case *http2.SettingsFrame:
			s.settings(f)
		case *http2.GoAwayFrame:
			s.leave(f.LastStreamID)
		}
	}
}

func (s *stream) reply(write func()) {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	write()
	_ = s.w.Flush()
}

func (s *stream) settings(f *http2.SettingsFrame) {
	if f.IsAck() {
		return
	}
	if n, found := f.Value(http2.SettingMaxConcurrentStreams); found {
		s.mu.Lock()
		s.most = int(n)
		s.mu.Unlock()
	}
	s.reply(func() {
		if n, found := f.Value(http2.SettingHeaderTableSize); found {
			s.head.resize(n)
		}
		_ = s.fr.WriteSettingsAck()
	})
}

// answer parses the verdict, which comes first in the message.
func (s *stream) answer(f *http2.DataFrame) {
	const prefix = 5
	d := f.Data()
	s.mu.Lock()
	defer s.mu.Unlock()
	c, found := s.open[f.StreamID]
	if !found || c.answered || len(d) < prefix {
		return
	}
	c.answered, c.kind = true, Unknown
	if len(d) > prefix+1 && d[prefix] == 0x08 {
		switch d[prefix+1] {
		case 1:
			c.kind = OK
		case 2:
			c.kind = OverLimit
		}
	}
}

// headers decodes headers, all of which update the dynamic table, and ends a call with the trailers of its answer. It returns false
// for headers that exceed a frame, which are not supported.
func (s *stream) headers(f *http2.HeadersFrame) bool {
	s.code = codes.Unknown
	if _, err := s.dec.Write(f.HeaderBlockFragment()); err != nil || s.dec.Close() != nil || !f.HeadersEnded() {
		return false
	}
	if !f.StreamEnded() {
		return true
	}
	s.mu.Lock()
	c, found := s.open[f.StreamID]
	s.mu.Unlock()
	switch {
	case !found:
	case c.answered:
		s.end(f.StreamID, c.kind, codes.OK)
	default:
		s.end(f.StreamID, Failed, s.code)
	}
	return true
}

// leave stops sending calls on the connection, and ends calls that the server has not accepted.
func (s *stream) leave(last uint32) {
	var gone []uint32
	s.mu.Lock()
	s.leaving = true
	for id := range s.open {
		if id > last {
			gone = append(gone, id)
		}
	}
	idle := len(s.open) == len(gone)
	s.mu.Unlock()
	for _, id := range gone {
		s.end(id, Lost, codes.Unavailable)
	}
	if idle {
		s.close()
	}
}

// breakUp ends all calls of a broken connection.
func (s *stream) breakUp() {
	s.release()
	s.close()
	s.mu.Lock()
	s.broken = true
	ids := make([]uint32, 0, len(s.open))
	for id := range s.open {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		s.end(id, Lost, codes.Unavailable)
	}
	close(s.done)
}
