package rls

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/ratelimitd/ratelimitd/internal/overload"
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

// TestHandBack: what is kept from grpc is given to it while it has nothing to read, but not amid headers.
func TestHandBack(t *testing.T) {
	t.Parallel()
	for _, amid := range []bool{false, true} {
		ours, theirs := net.Pipe()
		defer ours.Close()
		service := New(decideFunc(allow), Config{Gate: overload.New(overload.Config{MaxCalls: 1000, Patience: time.Minute})})
		conn := peekedConn{ours, &boundedConn{peek: newPeek()}, service, newAnswers(service.culling, ours)}
		frames := make(chan string) // that grpc reads
		go func() {
			defer close(frames)
			r := bufio.NewReaderSize(conn, readBuffer)
			if _, err := io.CopyN(io.Discard, r, prefaceSize); err != nil {
				return
			}
			for fr := http2.NewFramer(nil, r); ; {
				f, err := fr.ReadFrame()
				if err != nil {
					return
				}
				if w, ok := f.(*http2.WindowUpdateFrame); ok {
					frames <- fmt.Sprint("window ", w.Increment)
				} else {
					frames <- f.Header().Type.String()
				}
			}
		}()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		s := newSender(t)
		send := func() {
			b := bytes.Clone(s.out.Bytes())
			s.out.Reset()
			go func() { _, _ = theirs.Write(b) }() // which waits until all of it is read
		}
		reads := func(want string) {
			t.Helper()
			select {
			case f := <-frames:
				if f != want {
					t.Errorf("amid headers %t: grpc reads %q, want %q", amid, f, want)
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("amid headers %t: grpc reads nothing, want %q", amid, want)
			}
		}
		s.do(s.fr.WriteWindowUpdate(0, 1<<20))
		send()
		reads("SETTINGS")
		reads(fmt.Sprint("window ", 1<<20*5/8))
		s.do(s.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}, EndHeaders: !amid}))
		send()
		reads("HEADERS")
		write := func(most int) {
			for sent := 0; sent < most; sent += maxFrame {
				if _, err := conn.Write(appendFrame(nil, frameData, 0, 1, make([]byte, maxFrame))); err != nil {
					t.Fatal(err)
				}
			}
		}
		write(firstWindow + 1<<20*5/8 - maxFrame)
		if amid {
			select {
			case f := <-frames:
				t.Errorf("amid headers grpc reads %v", f)
			case <-time.After(50 * time.Millisecond):
			}
			s.do(s.fr.WriteContinuation(1, true, []byte{0x84}))
			send()
			reads("CONTINUATION")
		}
		reads(fmt.Sprint("window ", 1<<20*3/8))
		s.do(s.fr.WriteWindowUpdate(0, 1<<19)) // of which as much is kept again, and there is more to read than was
		send()
		reads(fmt.Sprint("window ", 1<<19-1<<20*3/8))
		write(1 << 19)
		reads(fmt.Sprint("window ", 1<<20*3/8))
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
