package rls

import (
	"context"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/overload"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// Calls whose headers have come, and nothing else, are not in progress: the limit of those must not be used up by them.
func TestG44_StallAmidIdleCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const idle = 500
		gate := overload.New(overload.Config{MaxCalls: idle})
		p := newPipes()
		serveOn(t, NewServer(New(decideFunc(allow), Config{Gate: gate}), ServerConfig{}), p)
		conn := idleCalls(t, p, idle)
		synctest.Wait()
		if n := gate.Stats().Calls; n != idle {
			t.Fatalf("%d calls are in progress, want %d", n, idle)
		}
		time.Sleep(300 * time.Millisecond)
		if _, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("shop", "user=a")); err != nil {
			t.Errorf("a call of somebody else: %v, want it to be answered", err)
		}
		time.Sleep(messageTime)
		if n := gate.Stats().Calls; n != 0 {
			t.Errorf("%d calls are in progress when all have ended", n)
		}
	})
}

// When more calls without a message come at once than may wait, those of the connections with most of them give way to others,
// however short they have waited, and however many connections they are.
func TestG39_AllAtOnce(t *testing.T) {
	for name, c := range map[string]struct{ most, conns, each int }{
		"few connections":  {most: 64, conns: 4, each: 20},
		"many connections": {most: 400, conns: 20, each: 25},
		"a few on each":    {most: 64, conns: 16, each: 5},
		"one on most":      {most: 64, conns: 40, each: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPipes()
				serveOn(t, NewServer(New(decideFunc(allow), Config{MaxWaiting: c.most}), ServerConfig{}), p)
				conns := make([]*grpc.ClientConn, c.conns)
				for i := range conns {
					conns[i] = idleCalls(t, p, 0)
				}
				for range c.each {
					for _, conn := range conns {
						idleCall(t, conn)
					}
					synctest.Wait()
				}
				begin := time.Now()
				good := ratelimitv3.NewRateLimitServiceClient(idleCalls(t, p, 0))
				for i := range 10 {
					if _, err := good.ShouldRateLimit(t.Context(), request("shop", "user=a")); err != nil {
						t.Errorf("call %d of somebody else: %v, want it to be answered", i, err)
					}
				}
				if took := time.Since(begin); took >= recount {
					t.Errorf("that took %v, in which others have become slow", took)
				}
			})
		})
	}
}

// What one connection has give way to it in a moment leaves others a way in.
func TestG39_OneTakesAllWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 4 * mostWays
		p := newPipes()
		serveOn(t, NewServer(New(decideFunc(allow), Config{MaxWaiting: most}), ServerConfig{}), p)
		for range 4 {
			idleCalls(t, p, most/4)
		}
		good := ratelimitv3.NewRateLimitServiceClient(idleCalls(t, p, 0))
		time.Sleep(givesWay)
		for round := range 3 {
			idleCalls(t, p, 2*mostWays)
			if _, err := good.ShouldRateLimit(t.Context(), request("shop", "user=a")); err != nil {
				t.Errorf("round %d: a call of somebody else: %v, want it to be answered", round, err)
			}
		}
	})
}

// Messages of 40 KB take what they are long, not the megabyte that grpc's pool has for them, while their calls wait to be decided.
func TestG47_LargeMessagesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 100
		decide := make(chan struct{})
		p := newPipes()
		serveOn(t, NewServer(New(decideFunc(func(context.Context, *limiter.Request, *limiter.Verdict) error {
			<-decide
			return nil
		}), Config{}), ServerConfig{}), p)
		client := ratelimitv3.NewRateLimitServiceClient(idleCalls(t, p, 0))
		large := request("shop", "user="+strings.Repeat("a", 40_000))
		live := func() int64 {
			heap() // what pools hold lives through one collection
			return heap()
		}
		before := live()
		var wg sync.WaitGroup
		for range calls {
			wg.Go(func() {
				if _, err := client.ShouldRateLimit(t.Context(), large, grpc.MaxRetryRPCBufferSize(1)); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if each := (live() - before) / calls; each < 20_000 || each > 160_000 {
			t.Errorf("each takes %d bytes", each)
		}
		close(decide)
		wg.Wait()
	})
}

// idleCalls makes a connection, and calls on it of which only the headers are sent.
func idleCalls(t *testing.T, p *pipes, calls int) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return p.dial(), nil }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	for range calls {
		idleCall(t, conn)
	}
	synctest.Wait()
	return conn
}

// idleCall makes a call of which only the headers are sent.
func idleCall(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	if _, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, fullMethod); err != nil {
		t.Fatal(err)
	}
}

// fullConn is a connection of which there is always more to read.
type fullConn struct{ net.Conn }

func (fullConn) Read(b []byte) (int, error) { return len(b), nil }

// TestLittleRead: where many calls wait for their message, a connection on which many do, or of which nothing else is known, is read a little
// at a time.
func TestLittleRead(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		most               int
		calls, others, own int64
		received           bool
		want               int
	}{
		"few":                    {calls: many - 1, own: many - 1, want: readBuffer},
		"many, on it":            {calls: many, own: fewWaiting + 1, received: true, want: littleRead},
		"many, elsewhere":        {calls: many, own: fewWaiting, received: true, want: readBuffer},
		"many, nothing is known": {calls: many, want: littleRead},
		"many of other methods":  {calls: 1, others: many - 1, want: littleRead},
		"many may":               {most: 100 * many * manyPart, calls: many, want: littleRead},
		"many, as few may":       {most: 10 * manyPart, calls: 10, want: littleRead},
		"few, as few may":        {most: 10 * manyPart, calls: 9, want: readBuffer},
	} {
		service := New(decideFunc(allow), Config{MaxWaiting: x.most, Gate: overload.New(overload.Config{MaxCalls: 1000, Patience: time.Minute})})
		service.waiting.calls.Store(x.calls)
		service.others.calls.Store(x.others)
		conn := fullConn{}
		p := peekedConn{conn, &boundedConn{peek: newPeek()}, service, newAnswers(service.culling, conn)}
		p.of.waiting.Store(x.own)
		p.of.received.Store(x.received)
		if n, err := p.Read(make([]byte, readBuffer)); n != x.want || err != nil {
			t.Errorf("%s: %d bytes are read, want %d (%v)", name, n, x.want, err)
		}
	}
}

// TestReadInTurn: where many calls wait for their message, whoever can run does before a connection is read.
func TestReadInTurn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, crowded := range []bool{false, true} {
		service := New(decideFunc(allow), Config{})
		if crowded {
			service.waiting.calls.Store(maxWaiting)
		}
		ran := atomic.Bool{}
		go ran.Store(true)
		service.waiting.takeTurn(&boundedConn{}, readBuffer)
		if ran.Load() != crowded {
			t.Errorf("while many calls wait (%t) others run before a connection is read: %t", crowded, ran.Load())
		}
	}
}

// TestWaitingOfConnections: a connection knows how many of its calls wait for their message, and that one has got it.
func TestWaitingOfConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		bounded := Bound(p, Connections{})
		serveOn(t, NewServer(New(decideFunc(allow), Config{MaxWaiting: 10}), ServerConfig{}), bounded)
		connection := func() (of *boundedConn) {
			synctest.Wait()
			bounded.mu.Lock()
			defer bounded.mu.Unlock()
			for _, c := range bounded.clients {
				of = c.conns[len(c.conns)-1]
			}
			return of
		}
		expect := func(of *boundedConn, waiting int64, received bool) {
			t.Helper()
			synctest.Wait()
			if n, r := of.waiting.Load(), of.received.Load(); n != waiting || r != received {
				t.Errorf("%d calls of a connection wait, want %d; one has got its message: %t, want %t", n, waiting, r, received)
			}
		}
		conn := idleCalls(t, p, 6)
		of := connection()
		expect(of, 6, false)
		for range 3 {
			if _, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, healthpb.Health_Check_FullMethodName); err != nil {
				t.Fatal(err)
			}
		}
		expect(of, 9, false)
		if _, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("shop", "user=a")); err != nil {
			t.Error(err)
		}
		expect(of, 9, true)
		time.Sleep(idles + waitingTick)
		expect(of, 9, false)
		time.Sleep(messageTime)
		expect(of, 0, false)
		health := idleCalls(t, p, 0)
		if _, err := healthpb.NewHealthClient(health).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Error(err)
		}
		expect(connection(), 0, true)
		idleCalls(t, p, 10)
		time.Sleep(givesWay)
		hog := connection()
		expect(hog, 10, false)
		idleCalls(t, p, 3) // to which three of the others give way
		expect(hog, 7, false)
		expect(connection(), 3, false)
	})
}

// TestG55_NeverBegun: calls that grpc ends without running their handler, such as those with an encoding that it does not know, are not
// counted any more, however many they are.
func TestG55_NeverBegun(t *testing.T) {
	const most = 64
	gate := overload.New(overload.Config{MaxCalls: 1000, Patience: time.Minute})
	w := start(t, threePerHour, Config{MaxWaiting: most, Gate: gate})
	message := framed(0, marshal(t, request("shop", "user=a")))
	for i := range 5 * most {
		if o := w.bare(headers("grpc-encoding", "unknown"), message); o.grpc != "12" {
			t.Fatalf("outcome %+v, want UNIMPLEMENTED", o)
		}
		if i%10 > 0 {
			continue
		}
		if _, err := w.ShouldRateLimit(t.Context(), request("shop", "user=a")); err != nil {
			t.Fatalf("somebody else, after %d such calls: %v", i+1, err)
		}
	}
	testkit.Eventually(t, "nobody is counted", func() bool { return w.service.waiting.calls.Load() == 0 && gate.Stats().Calls == 0 })
}
