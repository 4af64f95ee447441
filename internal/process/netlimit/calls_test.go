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

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// port is an in-memory listener, whose connections are read like by a gRPC server.
type port struct {
	quiet

	t       *testing.T
	waiting *waiting
	pipes   *testkit.Pipes
	conns   chan *Conn

	mu     sync.Mutex
	shed   int
	floods []bool
}

func newPort(t *testing.T, most int) *port {
	t.Helper()
	p := &port{t: t, pipes: testkit.NewPipes(), conns: make(chan *Conn)}
	l := Listen(p.pipes, Config{MaxWaiting: most, Observer: p})
	p.waiting = &l.waiting
	accept(t, l, p.conns)
	return p
}

// accept passes on the connections of a listener, and reads them, until the test ends.
func accept(t *testing.T, l *Listener, conns chan<- *Conn) {
	t.Helper()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, c) }()
			conns <- c.(*Conn)
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
}

// Shed implements [Observer].
func (p *port) Shed(calls int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shed += calls
}

// Flood implements [Observer].
func (p *port) Flood(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.floods = append(p.floods, on)
}

// counts returns the numbers of waiting calls and their connections, by kind.
func (p *port) counts() (calls, on [kinds]int) {
	p.waiting.mu.Lock()
	defer p.waiting.mu.Unlock()
	return p.waiting.calls, p.waiting.on
}

// connect returns both ends of a new connection.
func (p *port) connect() (client net.Conn, conn *Conn) {
	client = p.pipes.Dial()
	p.t.Cleanup(func() { _ = client.Close() })
	return client, <-p.conns
}

// begin begins n calls, and returns the ones with room.
func (p *port) begin(conn *Conn, kind Kind, n int) (all []*Call) {
	for range n {
		c := new(Call)
		if conn.Begin(p.t.Context(), kind, c) {
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

// TestLateMessage: the connection of a call without a message is closed after ten seconds, unless the call is a later message of a
// stream.
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

// TestShares: beyond half of the limit, each connection gets an equal share. Each kind of calls has its own limit.
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
		time.Sleep(2 * sweepEvery)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.shed != 30+40 || len(p.floods) != 1 {
			t.Errorf("%d calls were shed, and floods were %v; want 70, and one", p.shed, p.floods)
		}
	})
}

// TestFirstCall: however many calls a few connections hold, there is room for the first call of every other connection.
func TestFirstCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, 80)
		for range 10 {
			_, greedy := p.connect()
			p.begin(greedy, Hot, 80)
		}
		for i := range 3 {
			_, good := p.connect()
			calls := p.begin(good, Hot, 2)
			if len(calls) != 1 {
				t.Fatalf("of two calls of connection %d there is room for %d, want 1", i, len(calls))
			}
			calls[0].Received(100)
		}
	})
}

// TestSlowGivesWay: without room, the connection with the most calls that have waited for a while is closed in favour of another
// one.
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
		time.Sleep(90 * time.Millisecond)
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
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.floods) != 2 || p.floods[1] {
			t.Errorf("floods are %v, want the end of one", p.floods)
		}
	})
}

// TestPending: the connections with the most bytes of incomplete messages are closed if all together have too many.
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
		open[0].Received(40 << 20) // complete, so no longer limited here
		time.Sleep(100 * time.Millisecond)
		p.wantClosed(false, "with 1 MiB", light)
		p.wantClosed(false, "with a message that is whole", busy)
		send(heavy, 25)
		time.Sleep(100 * time.Millisecond)
		p.wantClosed(true, "with 25 MiB", heavy)
		p.wantClosed(false, "with 1 MiB beside it", light)
	})
}

// TestOverlapping: other bytes of a busy connection, such as headers, do not count as an incomplete message, although a
// message is always pending.
func TestOverlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, 100)
		client, conn := p.connect()
		calls := p.begin(conn, Hot, 2)
		for range 300 {
			if _, err := client.Write(make([]byte, 1<<20)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			calls = append(calls, p.begin(conn, Hot, 1)...)
			calls[0].Received(1<<20 - 200_000)
			calls = calls[1:]
			time.Sleep(15 * time.Millisecond)
		}
		p.wantClosed(false, "after 300 MiB of calls of which none waited for long", client)
		send := func(n int) { _, _ = client.Write(make([]byte, n)) }
		send(20 << 20)
		calls[0].Received(100)
		time.Sleep(100 * time.Millisecond)
		p.wantClosed(false, "with 20 MiB", client)
		send(5 << 20)
		time.Sleep(100 * time.Millisecond)
		p.wantClosed(true, "with 25 MiB for a call", client)
	})
}

// TestLaterMessage: only the bytes of a later message count for its stream, whatever else its connection sends.
func TestLaterMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, 100)
		client, conn := p.connect()
		later := p.begin(conn, Later, 1)[0]
		for range 50 {
			if _, err := client.Write(make([]byte, 1<<20)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(15 * time.Millisecond)
		}
		later.Hold(20 << 20)
		time.Sleep(100 * time.Millisecond)
		p.wantClosed(false, "with 20 MiB of a message", client)
		later.End()
		later = p.begin(conn, Later, 1)[0]
		later.Hold(20 << 20)
		time.Sleep(100 * time.Millisecond)
		p.wantClosed(false, "with 20 MiB of another", client)
		later.Hold(5 << 20)
		time.Sleep(100 * time.Millisecond)
		p.wantClosed(true, "with 25 MiB of it", client)
		later.Hold(1) // the connection is closed
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.shed != 1 {
			t.Errorf("%d calls were shed, want the stream", p.shed)
		}
	})
}

// TestEndedCalls: calls that end without a message no longer count.
func TestEndedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, 4)
		client, conn := p.connect()
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 {
			if !conn.Begin(ctx, Hot, new(Call)) {
				t.Fatal("there is no room")
			}
		}
		for _, c := range p.begin(conn, Other, 2) {
			c.End()
			c.End() // has no effect
		}
		cancel()
		time.Sleep(2 * sweepEvery)
		if calls, on := p.counts(); calls != [kinds]int{} || on != [kinds]int{} {
			t.Errorf("%d calls wait on %d connections, want none", calls, on)
		}
		p.begin(conn, Hot, 1)
		_ = client.Close()
		_ = conn.Close()
		if calls, _ := p.counts(); calls[Hot] != 0 {
			t.Errorf("%d calls wait on a connection that is closed", calls[Hot])
		}
		if n := len(p.begin(conn, Hot, 1)); n != 1 {
			t.Error("a call that comes as its connection closes is shed")
		}
		if calls, _ := p.counts(); calls[Hot] != 0 {
			t.Error("a call that comes as its connection closes counts")
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

// TestUntaken: the connections whose clients take the least of their answers are closed if all together hold too much for a second.
func TestUntaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, 100)
		busy, busyConn := p.connect()
		stuck, stuckConn := p.connect()
		light, lightConn := p.connect()
		owe := func(c *Conn, calls int) {
			for range calls {
				c.AnswerQueued(100)
			}
		}
		owe(lightConn, 1000)
		owe(stuckConn, 14_000)
		for range 300 { // the client takes all of them slowly
			owe(busyConn, 20_000)
			time.Sleep(10 * time.Millisecond)
			for range 20_000 {
				busyConn.AnswerDone(100)
			}
			time.Sleep(11 * time.Millisecond)
		}
		p.wantClosed(false, "with 59 MiB", stuck)
		p.wantClosed(false, "that takes its answers", busy)
		owe(stuckConn, 2000)
		time.Sleep(3 * time.Second)
		p.wantClosed(true, "with 67 MiB", stuck)
		p.wantClosed(false, "with 4 MiB beside it", light)
		p.wantClosed(false, "that took its answers", busy)
		for range 1000 {
			lightConn.AnswerDone(100)
		}
		time.Sleep(time.Second)
		w := &lightConn.listener.waiting
		w.mu.Lock()
		n := len(w.conns)
		w.mu.Unlock()
		if n > 0 {
			t.Errorf("%d connections are looked at, though none that is open owes anything", n)
		}
	})
}
