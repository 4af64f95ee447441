package netlimit

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// port is a listener in memory, whose connections are read as a server of gRPC would, and what looks after their calls.
type port struct {
	t       *testing.T
	waiting *Waiting
	pipes   *pipes
	conns   chan *Conn

	mu      sync.Mutex
	refused int
	floods  []bool
}

func newPort(t *testing.T, most int) *port {
	t.Helper()
	p := &port{t: t, pipes: newPipes(), conns: make(chan *Conn)}
	p.waiting = NewWaiting(Bounds{
		MaxWaiting: most,
		Refused: func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.refused++
		},
		Flood: func(on bool) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.floods = append(p.floods, on)
		},
	})
	l := Listen(p.pipes, Config{})
	p.waiting.Serve(l)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, c) }()
			p.conns <- c.(*Conn)
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
	return p
}

// connect returns both ends of a new connection.
func (p *port) connect() (client net.Conn, conn *Conn) {
	client = p.pipes.dial()
	p.t.Cleanup(func() { _ = client.Close() })
	return client, <-p.conns
}

// begin begins n calls, and returns those for which there was room.
func (p *port) begin(conn *Conn, kind Kind, n int) (all []*Call) {
	for range n {
		c := new(Call)
		if p.waiting.Begin(p.t.Context(), conn, kind, c) {
			all = append(all, c)
		}
	}
	return all
}

func closed(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now())
	_, err := c.Read(make([]byte, 1))
	return err == io.EOF //nolint:errorlint // as a pipe returns it
}

func (p *port) wantClosed(want bool, what string, c net.Conn) {
	p.t.Helper()
	synctest.Wait()
	if got := closed(c); got != want {
		p.t.Errorf("%s: closed is %t, want %t", what, got, want)
	}
}

// TestLateMessage: the connection of a call whose message does not come is closed after ten seconds, unless it is a later message of a stream.
func TestLateMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, 10)
		late, lateConn := p.connect()
		good, goodConn := p.connect()
		p.begin(lateConn, Hot, 1)
		for _, c := range p.begin(goodConn, Other, 3) {
			c.Received(100)
		}
		p.begin(goodConn, Later, 1)
		time.Sleep(9 * time.Second)
		p.wantClosed(false, "after 9 s", late)
		time.Sleep(2 * time.Second)
		p.wantClosed(true, "after 11 s", late)
		time.Sleep(time.Minute)
		p.wantClosed(false, "a stream that waits for another message", good)
	})
}

// TestShares: once half of the room is taken, a connection gets an equal share, and each kind of calls has room of its own.
func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, 60)
		_, greedy := p.connect()
		_, modest := p.connect()
		if n := len(p.begin(greedy, Hot, 60)); n != 30 {
			t.Errorf("a connection alone has room for %d calls, want half, 30, since another one may come", n)
		}
		if n := len(p.begin(modest, Hot, 60)); n != 20 {
			t.Errorf("a second one has room for %d calls, want a share of three, 20", n)
		}
		if n := len(p.begin(modest, Other, 5)); n != 5 {
			t.Errorf("of other methods there is room for %d calls, want 5", n)
		}
		if p.refused != 30+40 || len(p.floods) != 1 {
			t.Errorf("%d calls were refused, and floods were %v; want 70, and one", p.refused, p.floods)
		}
	})
}

// TestSlowGivesWay: where there is no room, the connection with most calls that have waited for a while is closed for another one.
func TestSlowGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, 4)
		var clients []net.Conn
		for range 4 {
			client, conn := p.connect()
			clients = append(clients, client)
			p.begin(conn, Hot, 1)
		}
		_, conn := p.connect()
		if n := len(p.begin(conn, Hot, 1)); n != 0 {
			t.Error("a call has room while others have just come, and may be about to be worked on")
		}
		time.Sleep(100 * time.Millisecond)
		if n := len(p.begin(conn, Hot, 1)); n != 1 {
			t.Error("a call has no room although others are slow")
		}
		synctest.Wait()
		n := 0
		for _, c := range clients {
			if closed(c) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d connections are closed for it, want 1", n)
		}
		time.Sleep(15 * time.Second)
		if len(p.floods) != 2 || p.floods[1] {
			t.Errorf("floods are %v, want the end of one", p.floods)
		}
	})
}

// TestPending: the connections with most bytes of messages that have not come whole are closed once all have too many.
func TestPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, 100)
		send := func(c net.Conn, mb int) {
			for range mb {
				if _, err := c.Write(make([]byte, 1<<20)); err != nil {
					t.Error(err)
				}
			}
		}
		heavy, heavyConn := p.connect()
		light, lightConn := p.connect()
		busy, busyConn := p.connect()
		p.begin(heavyConn, Hot, 1)
		p.begin(lightConn, Hot, 1)
		open := p.begin(busyConn, Hot, 2)
		send(light, 1)
		send(busy, 40)
		open[0].Received(40 << 20) // which is complete, and no longer ours to bound
		time.Sleep(100 * time.Millisecond)
		p.wantClosed(false, "with 1 MiB", light)
		p.wantClosed(false, "with a message that is whole", busy)
		send(heavy, 25)
		time.Sleep(100 * time.Millisecond)
		p.wantClosed(true, "with 25 MiB", heavy)
		p.wantClosed(false, "with 1 MiB beside it", light)
	})
}

// TestEndedCalls: calls that end without their message no longer count.
func TestEndedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, 4)
		client, conn := p.connect()
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 {
			if !p.waiting.Begin(ctx, conn, Hot, new(Call)) {
				t.Fatal("there is no room")
			}
		}
		for _, c := range p.begin(conn, Other, 2) {
			c.End()
			c.End() // twice is as once
		}
		cancel()
		time.Sleep(2 * sweepEvery)
		for kind := range p.waiting.waiting {
			if n, conns := p.waiting.waiting[kind].Load(), p.waiting.conns[kind].Load(); n != 0 || conns != 0 {
				t.Errorf("of kind %d %d calls wait on %d connections, want none", kind, n, conns)
			}
		}
		p.begin(conn, Hot, 1)
		_ = client.Close()
		_ = conn.Close()
		if n := p.waiting.waiting[Hot].Load(); n != 0 {
			t.Errorf("%d calls wait on a connection that is closed", n)
		}
		if n := len(p.begin(conn, Hot, 1)); n != 1 || p.waiting.waiting[Hot].Load() != 0 {
			t.Error("a call that comes as its connection closes is refused, or counts")
		}
	})
}

func TestStreams(t *testing.T) {
	t.Parallel()
	c := new(Conn)
	var last func()
	for range maxStreams {
		closed, ok := c.Open()
		if !ok {
			t.Fatal("there is no room for a stream")
		}
		last = closed
	}
	if _, ok := c.Open(); ok {
		t.Error("there is room for one stream more")
	}
	last()
	if _, ok := c.Open(); !ok {
		t.Error("there is no room once one has ended")
	}
}
