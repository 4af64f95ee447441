package rls

import (
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// sendRefusals has answers send so many refusals.
func sendRefusals(a *answers, calls int) {
	b := a.culling.begin(1)
	for range calls {
		*b = a.culling.appendRefusal(*b, 1)
	}
	a.send(b)
}

// TestUnreadAnswers: of a client that reads no answers not much waits, and who reads its calls waits for it, but not long; grpc has its
// further ones.
func TestUnreadAnswers(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe() // on which a write waits until it is read
	defer theirs.Close()
	a := newAnswers(newCulling(), ours)
	answers, times := 0, 0
	for a.room() >= leastRoom {
		n := min(50, a.room()/leastRoom)
		sendRefusals(a, n)
		answers, times = answers+n, times+1
	}
	if a.owed > mostAnswers || a.owed < mostAnswers/2 {
		t.Errorf("%d bytes wait though nobody reads them, want up to %d", a.owed, mostAnswers)
	}
	begun := time.Now()
	if a.await(); time.Since(begun) < writingTime {
		t.Errorf("reading goes on after %v though nothing was written", time.Since(begun))
	}
	waited := make(chan struct{})
	go func() {
		for a.room() < mostAnswers/2 {
			a.await()
		}
		close(waited)
	}()
	fr := http2.NewFramer(nil, theirs)
	for answers > 0 || times > 0 {
		f, err := fr.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch f.(type) {
		case *http2.WindowUpdateFrame:
			times--
		case *http2.HeadersFrame:
			answers--
		}
	}
	<-waited
	if answers != 0 || times != 0 {
		t.Errorf("%d answers and %d of what may be sent again too many", -answers, -times)
	}
	testkit.Eventually(t, "there is room again", func() bool { return a.room() == mostAnswers })
	a.culling.waiting.Add(mostAllAnswers - leastAnswers - 1)
	if n := a.room(); n != leastAnswers+1 {
		t.Errorf("there is room for %d bytes though others have nearly all, want %d", n, leastAnswers+1)
	}
	a.culling.waiting.Add(mostAllAnswers)
	if n := a.room(); n != leastAnswers {
		t.Errorf("there is room for %d bytes though others have all, want %d", n, leastAnswers)
	}
}

// TestClosedAnswers: nothing waits to be written to a connection that is closed in the middle of a frame.
func TestClosedAnswers(t *testing.T) {
	t.Parallel()
	conn := &fakeConn{}
	a := newAnswers(newCulling(), conn)
	if _, err := a.write([]byte{0, 0, 1}); err != nil {
		t.Fatal(err)
	}
	sendRefusals(a, 1)
	a.flush()
	if n := conn.wrote.Len(); n != 3 {
		t.Errorf("%d bytes are written within a frame", n-3)
	}
	if n := a.culling.waiting.Load(); n == 0 {
		t.Error("nothing waits")
	}
	_ = peekedConn{Conn: conn, answers: a}.Close()
	for range 2 {
		if n := a.culling.waiting.Load(); n != 0 || a.waiting != nil {
			t.Errorf("%d bytes wait for a connection that is closed", n)
		}
		sendRefusals(a, 1)
	}
}

// TestLargeBuffers: a buffer that has become large is not kept for others, and a few answers do not wait in one.
func TestLargeBuffers(t *testing.T) {
	t.Parallel()
	c := newCulling()
	some, few := make([]byte, 1000, 1<<15), make([]byte, 100, 1<<15)
	if b := c.fit(&few); cap(*b) > 4*len(few) || len(*b) != len(few) {
		t.Errorf("%d bytes wait in a buffer for %d", len(*b), cap(*b))
	}
	some = some[:1<<13]
	if b := c.fit(&some); b != &some {
		t.Error("what fits is copied")
	}
	large := make([]byte, 0, pooledAnswers+1)
	c.end(&large)
	for range 100 {
		if b := c.begin(0); cap(*b) > pooledAnswers {
			t.Fatalf("a buffer for %d bytes is kept", cap(*b))
		}
	}
}

// TestStuck: a connection whose client reads nothing of what waits for it is closed, and what waits counts no more; one whose client reads
// stays.
func TestStuck(t *testing.T) {
	t.Parallel()
	for _, reads := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			c := newCulling()
			a := newAnswers(c, ours)
			closed := false
			read := func() {
				b := make([]byte, 1<<16)
				for {
					if _, err := theirs.Read(b); err != nil {
						closed = true
						return
					}
				}
			}
			if reads {
				go read()
			}
			sendRefusals(a, 3)
			time.Sleep(stuckTime / 2)
			if reads {
				if a.stuck.Stop() {
					t.Error("it is still waited for a client that has read all")
				}
				sendRefusals(a, 3)
				time.Sleep(2 * stuckTime)
			} else {
				a.abandon() // as if it had been about to when the last answer was written
				if ours.SetReadDeadline(time.Time{}) != nil {
					t.Error("a connection is closed whose answers do not wait for long")
				}
				time.Sleep(stuckTime)
				go read()
			}
			synctest.Wait()
			if closed == reads {
				t.Errorf("the connection of a client that reads (%t) is closed: %t", reads, closed)
			}
			a.close()
			_ = ours.Close()
			synctest.Wait()
			if n := c.waiting.Load(); n != 0 {
				t.Errorf("%d bytes wait when the connection is closed", n)
			}
		})
	}
}

// TestAnswersBetween: what waits is written as soon as a frame of grpc's ends, and its headers, though it has more to write.
func TestAnswersBetween(t *testing.T) {
	t.Parallel()
	goAway := appendFrame(nil, 0x7, 0, 0, make([]byte, 8))
	data := appendFrame(nil, frameData, 0, ours, make([]byte, 100))
	for _, x := range []struct {
		first, then []byte
		want        string
	}{
		{data[:50], slices.Concat(data[50:], goAway, data), "DATA WINDOW_UPDATE HEADERS GOAWAY DATA"},
		{data[:5], slices.Concat(data[5:], goAway, data), "DATA WINDOW_UPDATE HEADERS GOAWAY DATA"},
		{data, slices.Concat(goAway, data), "DATA WINDOW_UPDATE HEADERS GOAWAY DATA"},
		{
			appendFrame(nil, frameHeaders, 0, ours, []byte{0x88}),
			slices.Concat(appendFrame(nil, frameContinuation, flagEndHeaders, ours, []byte{0x88}), data),
			"HEADERS CONTINUATION WINDOW_UPDATE HEADERS DATA",
		},
	} {
		conn := &fakeConn{}
		a := newAnswers(newCulling(), conn)
		write := func(b []byte) {
			if n, err := a.write(b); n != len(b) || err != nil {
				t.Errorf("%d of %d bytes: %v", n, len(b), err)
			}
		}
		write(x.first)
		sendRefusals(a, 1)
		write(x.then)
		var kinds []string
		for fr := http2.NewFramer(nil, &conn.wrote); ; {
			f, err := fr.ReadFrame()
			if err != nil {
				break
			}
			kinds = append(kinds, f.Header().Type.String())
		}
		if got := strings.Join(kinds, " "); got != x.want {
			t.Errorf("after %x: %s, want %s", x.first[:min(len(x.first), frameHeaderSize)], got, x.want)
		}
		a.close()
	}
}
