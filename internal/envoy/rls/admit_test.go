package rls

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/decide/admission"
	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/internal/process/netlimit"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestFallbackInTime checks that the fallback decides a call without enough time while its caller still waits.
func TestFallbackInTime(t *testing.T) {
	gate := admission.New(time.Minute)
	for gate.Enter(0) { // fills the gate; none of these calls ends
	}
	decide := decideFunc(func(ctx context.Context, r *limiter.Request, v *limiter.Verdict) error {
		if !r.OutOfTime {
			t.Error("a call for which there was no room was decided")
		}
		return allow(ctx, r, v)
	})
	address := serve(t, newServer(New(decide, Config{Gate: gate}), grpcserver.Config{}))
	c := ratelimitv3.NewRateLimitServiceClient(dial(t, address))
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if _, err := c.ShouldRateLimit(ctx, request("d", "k=v")); err != nil {
			t.Error(err)
		}
		cancel()
	}
}

func TestOutline(t *testing.T) {
	t.Parallel()
	one, descriptors := outline(marshal(t, request("one", "k=v", "k=w")))
	other, _ := outline(marshal(t, request("other", "k=v")))
	if string(one) != "one" || descriptors != 2 || string(other) != "other" || hashOf(one) == hashOf(other) {
		t.Errorf("the domains are %s and %s, with the numbers %d and %d; %d descriptors", one, other, hashOf(one), hashOf(other), descriptors)
	}
	for _, odd := range []string{"\x12\x00\x0a\x01a", "\x0a\x01b\x12\x00\x0a\x01a\x12\x00", "\x18\x01\x0a\x01a"} { // the last one counts, as in the decoder
		if domain, _ := outline([]byte(odd)); string(domain) != "a" {
			t.Errorf("%q has the domain %q", odd, domain)
		}
	}
	for _, bad := range []string{"", "\x0a", "\x0a\xff", "\xff\xff", "\x0a\x01a\x12", strings.Repeat("\x12\x00", 1<<20)} {
		if domain, n := outline([]byte(bad)); domain != nil {
			t.Errorf("%q has the domain %q and %d descriptors", bad, domain, n)
		}
	}
}

// TestG50_ShedCalls: calls that are shed before they are read leave nothing behind, however far away their deadlines are.
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
			serveOn(t, server, netlimit.Listen(l, netlimit.Config{MaxWaiting: -1})) // room for none
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

// live returns how many bytes of the heap are alive.
func live() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what a pool keeps goes with the second one
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // not that many
}
