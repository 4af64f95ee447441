package rls

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/ratelimitd/ratelimitd/internal/overload"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestWindow: grpc is told of five eighths of what may be sent at first, and then of all that comes back but for what it did not send.
func TestWindow(t *testing.T) {
	t.Parallel()
	var w window
	update := func(more uint32, first bool) (passed int64) {
		payload := binary.BigEndian.AppendUint32(nil, more)
		if !w.opens(payload, first) {
			passed = int64(binary.BigEndian.Uint32(payload))
		}
		return passed
	}
	if w.open() {
		t.Error("something may be sent to a client that has not said so")
	}
	if update(1<<20, true) != 5<<17 || update(1, true) != 1 || !w.open() {
		t.Errorf("%+v, want three eighths of 1 MiB", w)
	}
	if n := update(1000, false); n != 1000 {
		t.Errorf("grpc is told of %d that come back, of 1000 that it sent", n)
	}
	w.send(300)
	for _, x := range []struct {
		more   uint32
		passed int64
	}{{100, 0}, {150, 0}, {100, 50}, {100, 100}} {
		if n := update(x.more, false); n != x.passed {
			t.Errorf("grpc is told of %d of %d, want %d", n, x.more, x.passed)
		}
	}
	if w.left != w.share {
		t.Errorf("%+v: all that was sent has come back", w)
	}
	for w.open() {
		w.send(maxFrame)
	}
	if w.left < 0 || w.left >= maxFrame {
		t.Errorf("%d are left", w.left)
	}
}

// TestWindowHolds: whatever grpc and answers to culled calls send, in whatever order and however it is divided what their client says, it is
// no more than that.
func TestWindowHolds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 4)) //nolint:gosec // a test's
		var out bytes.Buffer
		fr := http2.NewFramer(&out, nil)
		p, passed := peek{}, []byte(nil)
		grpc, client, unread := int64(firstWindow), int64(firstWindow), int64(0) // what grpc may send; what it and we may; what has not come back
		sent := int64(0)                                                         // by grpc
		read := func() {
			for out.Len() > 0 {
				b := out.Next(1 + r.IntN(40))
				p.scan(b, nil)
				passed = append(passed, b[:remove(b, p.taken)]...)
			}
			const size = frameHeaderSize + windowSize
			for ; len(passed) >= size; passed = passed[size:] {
				grpc += int64(binary.BigEndian.Uint32(passed[frameHeaderSize:]))
			}
		}
		give := func(n uint32) {
			if err := fr.WriteWindowUpdate(0, n); err != nil {
				t.Fatal(err)
			}
			client += int64(n)
		}
		give(1 << 16)
		give(1 << 16)
		read()
		p.newest = 1
		for range 300 {
			switch r.IntN(3) {
			case 0:
				n := r.Int64N(5000)
				if grpc >= n {
					grpc, client, unread, sent = grpc-n, client-n, unread+n, sent+n
				}
				grpc += int64(p.window.handBack(sent))
			case 1:
				if p.window.open() {
					n := 1 + r.IntN(1000)
					p.window.send(n)
					client, unread = client-int64(n), unread+int64(n)
				}
			default:
				if n := r.Int64N(unread + 1); n > 0 {
					give(uint32(n)) //nolint:gosec // few
					unread -= n
					read()
				}
			}
			if p.window.split == nil && len(passed) == 0 && firstWindow+p.window.told-sent != grpc {
				t.Fatalf("seed %d: grpc may send %d, and is believed to %d", seed, grpc, firstWindow+p.window.told-sent)
			}
			if client < 0 || grpc+p.window.left > client {
				t.Fatalf("seed %d: grpc may send %d and others %d, of %d", seed, grpc, p.window.left, client)
			}
		}
	}
}

// TestLateWindow: grpc can go on even where a client says that more may be sent only once nearly all has been.
func TestLateWindow(t *testing.T) {
	t.Parallel()
	for _, at := range []int64{2, 3, 4, 16, 1000} { // it does once one part in so many is left
		s, sent, total := newSender(t), int64(0), int64(0)
		p := newPeek()
		all := int64(1<<20 + firstWindow)
		s.do(s.fr.WriteWindowUpdate(0, 1<<20))
		p.scan(s.out.Bytes(), nil)
		s.out.Reset()
		p.newest = 1
		grpc, client, handed := int64(firstWindow+1<<20*5/8), all, 0
		for ; total < 100*all; total += 100 {
			if grpc < 100 {
				t.Fatalf("where a client says so at one part in %d, grpc is stuck after %d bytes: %+v", at, total, p.window)
			}
			if p.window.open() && total%300 == 0 {
				p.window.send(100)
			} else {
				grpc, sent = grpc-100, sent+100
			}
			if client -= 100; client < all/at {
				s.do(s.fr.WriteWindowUpdate(0, uint32(all-client))) //nolint:gosec // less than 2 MiB
				b := s.out.Bytes()
				p.scan(b, nil)
				if remove(b, p.taken) > 0 {
					grpc += int64(binary.BigEndian.Uint32(b[frameHeaderSize:]))
				}
				client = all
				s.out.Reset()
			}
			more := p.window.handBack(sent)
			if grpc += int64(more); more > 0 {
				handed++
			}
			if grpc+p.window.left > client {
				t.Fatalf("grpc may send %d and others %d, of %d", grpc, p.window.left, client)
			}
		}
		if (handed > 0) != (at > 4) {
			t.Errorf("where a client says so at one part in %d, grpc is told of what is left %d times", at, handed)
		}
	}
}

// TestHandBack: what is kept from grpc is given to it while it has nothing to read, but not amid headers. Over TLS that neither breaks the
// connection nor loses what has come of a record.
func TestHandBack(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ secure, amidHeaders, amidRecord bool }{{}, {amidHeaders: true}, {secure: true}, {secure: true, amidHeaders: true}, {secure: true, amidRecord: true}} {
		t.Run(fmt.Sprintf("%+v", x), func(t *testing.T) {
			t.Parallel()
			c := newHandBack(t, x.secure)
			c.do(c.fr.WriteWindowUpdate(0, 1<<20))
			c.send()
			c.reads("SETTINGS")
			c.reads(fmt.Sprint("window ", 1<<20*5/8))
			c.do(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}, EndHeaders: !x.amidHeaders}))
			if x.amidRecord {
				c.client.halves.Store(true)
				c.send()
				<-c.client.half // and whoever reads waits for the rest of it
			} else {
				c.send()
				c.reads("HEADERS")
			}
			c.writes(firstWindow + 1<<20*5/8 - maxFrame)
			if x.amidHeaders {
				select {
				case f := <-c.frames:
					t.Errorf("amid headers grpc reads %v", f)
				case <-time.After(50 * time.Millisecond):
				}
				c.do(c.fr.WriteContinuation(1, true, []byte{0x84}))
				c.send()
				c.reads("CONTINUATION")
			}
			c.reads(fmt.Sprint("window ", 1<<20*3/8))
			if x.amidRecord {
				close(c.client.rest)
				c.reads("HEADERS")
			}
			c.do(c.fr.WriteWindowUpdate(0, 1<<19)) // of which as much is kept again, and there is more to read than was
			c.send()
			c.reads(fmt.Sprint("window ", 1<<19-1<<20*3/8))
			c.writes(1 << 19)
			c.reads(fmt.Sprint("window ", 1<<20*3/8))
		})
	}
}

// handBack is a connection between a client and grpc, which sends what the client lets it.
type handBack struct {
	*sender

	t      *testing.T
	server peekedConn
	client *halvingConn
	theirs net.Conn    // the client's, which may be TLS
	frames chan string // that grpc reads
}

// halvingConn writes what it is given; or half of it, and the rest once it is told to.
type halvingConn struct {
	net.Conn

	halves     atomic.Bool
	half, rest chan struct{}
}

// Write implements net.Conn.
func (c *halvingConn) Write(b []byte) (int, error) {
	if !c.halves.Swap(false) {
		return c.Conn.Write(b)
	}
	n, err := c.Conn.Write(b[:len(b)/2])
	if err != nil {
		return n, err
	}
	close(c.half) // it has been read: a pipe has no room
	<-c.rest
	more, err := c.Conn.Write(b[n:])
	return n + more, err
}

func newHandBack(t *testing.T, secure bool) *handBack {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	of := &boundedConn{Conn: near, bounded: Bound(nil, Connections{}), gone: true, peek: newPeek()}
	c := &handBack{
		t: t, sender: newSender(t), frames: make(chan string),
		client: &halvingConn{Conn: far, half: make(chan struct{}), rest: make(chan struct{})},
	}
	ours := net.Conn(of)
	c.theirs = c.client
	if secure {
		config, pool := serverTLS(t)
		ours, c.theirs = tls.Server(of, config), tls.Client(c.client, &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"}) //nolint:gosec // the server says which version
	}
	service := New(decideFunc(allow), Config{Gate: overload.New(overload.Config{MaxCalls: 1000, Patience: time.Minute})})
	c.server = peekedConn{ours, of, service, newAnswers(service.culling, ours)}
	go c.read()
	go func() { _, _ = io.Copy(io.Discard, c.theirs) }()
	return c
}

// read reads as grpc does.
func (c *handBack) read() {
	defer close(c.frames)
	r := bufio.NewReaderSize(c.server, readBuffer)
	if _, err := io.CopyN(io.Discard, r, prefaceSize); err != nil {
		return
	}
	for fr := http2.NewFramer(nil, r); ; {
		f, err := fr.ReadFrame()
		if err != nil {
			return
		}
		if w, ok := f.(*http2.WindowUpdateFrame); ok {
			c.frames <- fmt.Sprint("window ", w.Increment)
		} else {
			c.frames <- f.Header().Type.String()
		}
	}
}

// send has the client send what it has written.
func (c *handBack) send() {
	b := bytes.Clone(c.out.Bytes())
	c.out.Reset()
	go func() { _, _ = c.theirs.Write(b) }() // which waits until all of it is read
}

// reads waits until grpc has read a frame, which must be as wanted.
func (c *handBack) reads(want string) {
	c.t.Helper()
	select {
	case f := <-c.frames:
		if f != want {
			c.t.Fatalf("grpc reads %q, want %q", f, want)
		}
	case <-time.After(testkit.Patience):
		c.t.Fatalf("grpc reads nothing, want %q", want)
	}
}

// writes has grpc send so much data at least.
func (c *handBack) writes(most int) {
	for sent := 0; sent < most; sent += maxFrame {
		if _, err := c.server.Write(appendFrame(nil, frameData, 0, 1, make([]byte, maxFrame))); err != nil {
			c.t.Fatal(err)
		}
	}
}

// overdueConn is a connection of which a byte is read although reading had been ended.
type overdueConn struct{ net.Conn }

func (overdueConn) Read(b []byte) (int, error) { return copy(b, "x"), os.ErrDeadlineExceeded }

func (overdueConn) SetReadDeadline(time.Time) error { return nil }

// TestReadAndWoken: what has been read when reading is ended, to give grpc what is kept from it, is given to it.
func TestReadAndWoken(t *testing.T) {
	t.Parallel()
	service := New(decideFunc(allow), Config{Gate: overload.New(overload.Config{MaxCalls: 1000, Patience: time.Minute})})
	c := peekedConn{overdueConn{}, &boundedConn{peek: newPeek()}, service, newAnswers(service.culling, overdueConn{})}
	c.answers.wake = true
	if n, err := c.Read(make([]byte, 100)); n != 1 || err != nil || c.answers.wake {
		t.Errorf("%d bytes are read, and %v; want a byte, and that reading goes on", n, err)
	}
	if n, err := c.Read(make([]byte, 100)); n != 1 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes are read, and %v; want a byte, and the error of somebody else's deadline", n, err)
	}
}

// TestSmallWindow: a client that takes less on a stream than an answer may have is answered by grpc.
func TestSmallWindow(t *testing.T) {
	t.Parallel()
	for value, want := range map[uint32]bool{0: false, maxFrame - 1: false, maxFrame: true, 1<<31 - 1: true} {
		s := newSender(t)
		s.do(s.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: value}))
		s.do(s.fr.WriteWindowUpdate(0, 1<<20))
		p := newPeek()
		p.scan(s.out.Bytes(), nil)
		if p.window.open() != want {
			t.Errorf("with %d bytes on a stream: %t, want %t", value, p.window.open(), want)
		}
	}
}
