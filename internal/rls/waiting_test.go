package rls

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

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
// however short they have waited.
func TestG39_AllAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		serveOn(t, NewServer(New(decideFunc(allow), Config{MaxWaiting: 64}), ServerConfig{}), p)
		for range 4 {
			idleCalls(t, p, 20)
		}
		begin := time.Now()
		good := ratelimitv3.NewRateLimitServiceClient(idleCalls(t, p, 0))
		for i := range 10 {
			if _, err := good.ShouldRateLimit(t.Context(), request("shop", "user=a")); err != nil {
				t.Errorf("call %d of somebody else: %v, want it to be answered", i, err)
			}
		}
		if took := time.Since(begin); took >= givesWay {
			t.Errorf("that took %v, in which others have become slow", took)
		}
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
		if _, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, fullMethod); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
	return conn
}
