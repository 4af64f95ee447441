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

	"github.com/ratelimitd/ratelimitd/internal/decide/admission"
	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/internal/process/netlimit"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestG39_AllAtOnce checks that if more calls without a message arrive together than may wait, those of the connections with most of them
// are dropped first, regardless of their waits and of the number of connections.
func TestG39_AllAtOnce(t *testing.T) {
	for name, c := range map[string]struct{ most, conns, each int }{
		"few connections":  {most: 64, conns: 4, each: 20},
		"many connections": {most: 400, conns: 20, each: 25},
		"a few on each":    {most: 64, conns: 16, each: 5},
		"one on most":      {most: 64, conns: 40, each: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := testkit.NewPipes()
				serveOn(t, newServer(New(decideFunc(allow), Config{}), grpcserver.Config{}), netlimit.Listen(p, netlimit.Config{MaxWaiting: c.most}))
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
						t.Errorf("call %d of someone else: %v, want it to be answered", i, err)
					}
				}
				if took := time.Since(begin); took > 0 {
					t.Errorf("that took %v, in which others have become slow", took)
				}
			})
		})
	}
}

// TestG47_LargeMessagesWait checks that messages of 40 KB take only their size while their calls wait, rather than the megabyte of the
// buffer in grpc's pool.
func TestG47_LargeMessagesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 100
		decide := make(chan struct{})
		p := testkit.NewPipes()
		serveOn(t, newServer(New(decideFunc(func(context.Context, *limiter.Request, *limiter.Verdict) error {
			<-decide
			return nil
		}), Config{}), grpcserver.Config{}), p)
		client := ratelimitv3.NewRateLimitServiceClient(idleCalls(t, p, 0))
		large := request("shop", "user="+strings.Repeat("a", 40_000))
		live := func() int64 {
			heap() // a pool keeps its content for one collection
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

// idleCalls opens a connection with calls that send only headers.
func idleCalls(t *testing.T, p *testkit.Pipes, calls int) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return p.Dial(), nil }))
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

func idleCall(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	if _, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, method); err != nil {
		t.Fatal(err)
	}
}

// TestG44_IdleCalls checks that calls without a message are not in flight, and do not keep others from proceeding.
func TestG44_IdleCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := admission.New(time.Minute)
		p := testkit.NewPipes()
		serveOn(t, newServer(New(decideFunc(allow), Config{Gate: gate}), grpcserver.Config{}), p)
		conn := idleCalls(t, p, 500)
		if n := gate.Stats().Calls; n != 0 {
			t.Errorf("%d calls are in flight, want none", n)
		}
		if _, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("shop", "user=a")); err != nil {
			t.Errorf("another call: %v, want it to be answered", err)
		}
	})
}

// TestG55_NeverBegun checks that calls that grpc ends without running their handler, for example because of an unknown encoding, are no
// longer counted, however many there are.
func TestG55_NeverBegun(t *testing.T) {
	const most = 64
	w := start(t, threePerHour, Config{})
	l, err := netlimit.ListenTCP(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, w.server, netlimit.Listen(l, netlimit.Config{MaxWaiting: most}))
	w.address = l.Addr().String()
	good := ratelimitv3.NewRateLimitServiceClient(dial(t, w.address))
	message := framed(0, marshal(t, request("shop", "user=a")))
	for i := range 5 * most {
		if o := w.bare(headers("grpc-encoding", "unknown"), message); o.grpc != "12" {
			t.Fatalf("outcome %+v, want UNIMPLEMENTED", o)
		}
		if i%10 > 0 {
			continue
		}
		if _, err := good.ShouldRateLimit(t.Context(), request("shop", "user=a")); err != nil {
			t.Fatalf("another client, after %d such calls: %v", i+1, err)
		}
	}
}
