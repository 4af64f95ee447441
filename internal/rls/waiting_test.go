package rls

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/overload"
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

// TestLittleRead: where many calls wait for their message, each connection is read a little at a time.
func TestLittleRead(t *testing.T) {
	t.Parallel()
	service := New(decideFunc(allow), Config{Gate: overload.New(overload.Config{MaxCalls: 1000, Patience: time.Minute})})
	for calls, want := range map[int64]int{0: readBuffer, manyWaiting - 1: readBuffer, manyWaiting: littleRead} {
		service.waiting.calls.Store(calls)
		conn := fullConn{}
		p := peekedConn{conn, &boundedConn{peek: newPeek()}, service, newAnswers(service.culling, conn)}
		if n, err := p.Read(make([]byte, readBuffer)); n != want || err != nil {
			t.Errorf("while %d calls wait %d bytes are read, want %d (%v)", calls, n, want, err)
		}
	}
}
