package rls

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// serveInBubble serves on pipes until the end of the bubble's test.
func serveInBubble(t *testing.T, c grpcserver.Config) *testkit.Pipes {
	t.Helper()
	p, server := testkit.NewPipes(), newServer(New(decideFunc(allow), Config{}), c)
	serveOn(t, server, p)
	return p
}

// farEnd is the client's end of a connection, which uses frames directly.
type farEnd struct {
	conn net.Conn

	out    sync.Mutex // held while writing frames
	framer *http2.Framer

	mu     sync.Mutex
	frames []frame
	end    time.Duration // time from its start to its end; 0 while it is open
	silent bool          // does not answer pings
}

// frame is a received frame and its time since the start of the connection.
type frame struct {
	kind http2.FrameType
	code http2.ErrCode // of GOAWAY
	at   time.Duration
}

// connect opens a connection, sends the preface, and reads frames.
func connect(t *testing.T, p *testkit.Pipes, silent bool) *farEnd {
	t.Helper()
	conn := p.Dial()
	o := &farEnd{conn: conn, framer: http2.NewFramer(conn, conn), silent: silent}
	var wg sync.WaitGroup
	wg.Go(func() { o.read(time.Now()) })
	t.Cleanup(func() { _ = conn.Close(); wg.Wait() })
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	o.write(func() error { return o.framer.WriteSettings() })
	synctest.Wait()
	return o
}

func (o *farEnd) read(begin time.Time) {
	for {
		f, err := o.framer.ReadFrame()
		o.mu.Lock()
		if err != nil {
			o.end = time.Since(begin)
			o.mu.Unlock()
			_ = o.conn.Close()
			return
		}
		seen := frame{kind: f.Header().Type, at: time.Since(begin)}
		if g, ok := f.(*http2.GoAwayFrame); ok {
			seen.code = g.ErrCode
		}
		o.frames = append(o.frames, seen)
		o.mu.Unlock()
		if ping, ok := f.(*http2.PingFrame); ok && !ping.IsAck() && !o.silent {
			o.write(func() error { return o.framer.WritePing(true, ping.Data) })
		}
	}
}

// write writes a frame. It ignores errors, because the reader notices the end of the connection.
func (o *farEnd) write(frame func() error) {
	o.out.Lock()
	defer o.out.Unlock()
	_ = frame()
}

// first returns the first frame of a kind.
func (o *farEnd) first(kind http2.FrameType) (f frame, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range o.frames {
		if f.kind == kind {
			return f, true
		}
	}
	return frame{}, false
}

// ended returns the time at which the connection was closed.
func (o *farEnd) ended() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.end
}

// TestBoundsAreTold checks that the server announces its bounds to clients.
func TestBoundsAreTold(t *testing.T) {
	w := start(t, threePerHour, Config{})
	c, err := net.Dial("tcp", w.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	f, err := http2.NewFramer(c, c).ReadFrame()
	settings, ok := f.(*http2.SettingsFrame)
	if err != nil || !ok {
		t.Fatalf("the first frame is %v, %v; want SETTINGS", f, err)
	}
	for id, want := range map[http2.SettingID]uint32{http2.SettingMaxConcurrentStreams: 1024, http2.SettingMaxHeaderListSize: 64 << 10} {
		if got, ok := settings.Value(id); !ok || got != want {
			t.Errorf("%v = %d, %t; want %d", id, got, ok, want)
		}
	}
}

// TestStreamsAreBounded checks that excess streams are rejected, and that the connection continues.
func TestStreamsAreBounded(t *testing.T) {
	w := start(t, threePerHour, Config{})
	release := make(chan struct{})
	w.store.hook = func(context.Context) { <-release }
	defer close(release)
	c, err := net.Dial("tcp", w.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	body := framed(0, marshal(t, request("shop", "user=a")))
	head, err := encodeHead()
	if err != nil {
		t.Fatal(err)
	}
	fr := http2.NewFramer(c, c)
	sent := make(chan error, 1)
	go func() {
		_, err := io.WriteString(c, http2.ClientPreface)
		err = errors.Join(err, fr.WriteSettings())
		for i := range 1024 + 1 {
			id := uint32(2*i + 1)
			err = errors.Join(err,
				fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head, EndHeaders: true}), fr.WriteData(id, true, body))
		}
		sent <- err
	}()
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if reset, ok := f.(*http2.RSTStreamFrame); ok {
			if reset.StreamID != 2*1024+1 || reset.ErrCode != http2.ErrCodeRefusedStream {
				t.Errorf("stream %d was reset with %v; want the last one, %d", reset.StreamID, reset.ErrCode, 2*1024+1)
			}
			break
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// encodeHead encodes the headers of a call, without adding to a table.
func encodeHead() ([]byte, error) {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	enc.SetMaxDynamicTableSize(0)
	var err error
	for _, h := range headers() {
		err = errors.Join(err, enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}))
	}
	return block.Bytes(), err
}

// TestSlowHandshake checks that a client that does not finish its handshake is disconnected after ten seconds.
func TestSlowHandshake(t *testing.T) {
	config, _ := serverTLS(t)
	for name, c := range map[string]grpcserver.Config{"plain text": {}, "TLS": {TLS: config}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := serveInBubble(t, c)
				for _, said := range []string{"", "\x16\x03\x01", http2.ClientPreface[:10]} {
					begin, conn := time.Now(), p.Dial()
					go func() { _, _ = io.WriteString(conn, said) }() // a write to a pipe returns only when it is read
					if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, io.ErrClosedPipe) {
						t.Error(err)
					}
					if took := time.Since(begin); took > (10 * time.Second) {
						t.Errorf("%q: thrown out after %v, want %v at most", said, took, (10 * time.Second))
					} else if said == "" && took < (10*time.Second) {
						t.Errorf("thrown out after %v, want %v", took, (10 * time.Second))
					}
					_ = conn.Close()
				}
			})
		})
	}
}

func TestPings(t *testing.T) {
	for _, tt := range []struct {
		every time.Duration
		ok    bool
	}{{(10 * time.Second), true}, {(10 * time.Second) - 100*time.Millisecond, false}} {
		synctest.Test(t, func(t *testing.T) {
			o := connect(t, serveInBubble(t, grpcserver.Config{}), false)
			for range 10 {
				time.Sleep(tt.every)
				o.write(func() error { return o.framer.WritePing(false, [8]byte{1}) })
				synctest.Wait()
			}
			away, gone := o.first(http2.FrameGoAway)
			if gone == tt.ok || gone && away.code != http2.ErrCodeEnhanceYourCalm {
				t.Errorf("a ping every %v: GOAWAY: %t, %v; want it to be fine: %t", tt.every, gone, away.code, tt.ok)
			}
		})
	}
}

// TestSilentClients checks that a client is pinged after a minute of silence, and disconnected ten seconds later.
func TestSilentClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := serveInBubble(t, grpcserver.Config{})
		dead, idle := connect(t, p, true), connect(t, p, false)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if ping, asked := dead.first(http2.FramePing); !asked || ping.at != time.Minute {
			t.Errorf("asked %t, after %v; want %v", asked, ping.at, time.Minute)
		}
		if at := dead.ended(); at != time.Minute+(10*time.Second) {
			t.Errorf("given up after %v, want %v", at, time.Minute+(10*time.Second))
		}
		if at := idle.ended(); at != 0 {
			t.Errorf("an idle client that answers was given up after %v", at)
		}
	})
}

func TestConnectionAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := connect(t, serveInBubble(t, grpcserver.Config{MaxConnectionAge: time.Hour, MaxConnectionAgeGrace: time.Minute}), false)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		away, gone := o.first(http2.FrameGoAway)
		if !gone || away.code != http2.ErrCodeNo || away.at < 54*time.Minute || away.at > 66*time.Minute {
			t.Errorf("told to go: %t, after %v, with %v; want it after an hour, a tenth more or less", gone, away.at, away.code)
		}
	})
}
