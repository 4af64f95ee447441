package rls

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/internal/process/netlimit"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestG42_OtherCallsWithoutMessage checks that calls of health and of unknown methods that send only headers are bounded in number and
// time. They keep no other client from connecting, and a call with a message may take any time.
func TestG42_OtherCallsWithoutMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, service := testkit.NewPipes(), New(decideFunc(allow), Config{})
		serveOn(t, newServer(service, grpcserver.Config{Reflection: true}), netlimit.Listen(p, netlimit.Config{MaxWaiting: 4}))
		idle, good := idleCalls(t, p, 0), idleCalls(t, p, 0)
		health := healthpb.NewHealthClient(good)
		watch, err := health.Watch(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.Recv(); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		var streams []grpc.ClientStream
		for _, method := range []string{
			healthpb.Health_Check_FullMethodName, healthpb.Health_Watch_FullMethodName,
			"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", healthpb.Health_Check_FullMethodName,
		} {
			s, err := idle.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, method)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			streams = append(streams, s)
		}
		_, err = healthpb.NewHealthClient(idle).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "GRPC_MAX_WAITING_CALLS") {
			t.Errorf("another call of that client: %v, want it to be rejected", err)
		}
		if _, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Errorf("health for another client meanwhile: %v", err)
		}
		if _, err := ratelimitv3.NewRateLimitServiceClient(good).ShouldRateLimit(t.Context(), request("shop", "user=a")); err != nil {
			t.Errorf("ShouldRateLimit meanwhile: %v", err)
		}
		for i, s := range streams {
			if err := s.RecvMsg(new(healthpb.HealthCheckResponse)); status.Code(err) != codes.Unavailable {
				t.Errorf("stream %d ended with %v, want UNAVAILABLE, as of a connection that was closed", i, err)
			}
		}
		if took := time.Since(begin); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("they ended after %v, want 10 s", took)
		}
		time.Sleep(time.Minute)
		if err := watch.Context().Err(); err != nil {
			t.Errorf("a stream whose message came has ended: %v", err)
		}
		if _, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}
