package rls

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/internal/process/netlimit"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestG50_ShedCalls checks that calls shed before their message is read leave no memory behind, regardless of their deadlines.
func TestG50_ShedCalls(t *testing.T) {
	for name, c := range map[string]struct {
		health bool
		want   map[codes.Code]bool
	}{
		"waiting":          {false, map[codes.Code]bool{codes.Unavailable: true}},
		"of other methods": {true, map[codes.Code]bool{codes.Unavailable: true, codes.Canceled: true, codes.OK: true}},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := netlimit.ListenTCP(t.Context(), "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := newServer(New(decideFunc(allow), Config{}), grpcserver.Config{})
			serveOn(t, server, netlimit.Listen(l, netlimit.Config{MaxWaiting: -1})) // no call may wait
			conn := dial(t, l.Addr().String())
			call := func(timeout time.Duration) {
				begun := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), timeout)
				defer cancel()
				var err error
				if c.health {
					_, err = healthpb.NewHealthClient(conn).Check(ctx, new(healthpb.HealthCheckRequest))
				} else {
					_, err = ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request("any", "k=v"))
				}
				late := status.Code(err) == codes.DeadlineExceeded && time.Since(begun) >= timeout // on a busy machine
				if !c.want[status.Code(err)] && !late {
					t.Errorf("with %v: %v", timeout, err)
				}
			}
			call(time.Second) // shed on its arrival
			const calls, callers = 10_000 / slowdown, 50
			many := func() {
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() {
						for range calls / callers {
							call(1000 * time.Hour)
						}
					})
				}
				wg.Wait()
			}
			many()
			before := live()
			many()
			more := int64(0)
			if !testkit.Poll(testkit.Patience, func() bool { more = live() - before; return more <= calls*100 }) { // calls may be about to end
				t.Errorf("%d calls that were shed left %d bytes behind", calls, more)
			}
		})
	}
}

// live returns the size of live objects in bytes.
func live() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // a pool frees its content at the second collection
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // not that many
}
