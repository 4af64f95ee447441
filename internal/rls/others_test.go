package rls

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Calls of health, and of methods that do not exist, whose headers come and nothing else, are bounded in number and in time.
// They keep nobody else out, and one whose message has come may take as long as it likes.
func TestG42_OtherCallsWithoutMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, service := newPipes(), New(decideFunc(allow), Config{MaxWaiting: 4})
		serveOn(t, NewServer(service, ServerConfig{Reflection: true}), p)
		conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return p.dial(), nil }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		health := healthpb.NewHealthClient(conn)
		watch, err := health.Watch(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.Recv(); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		open := func(ctx context.Context, method string) grpc.ClientStream {
			s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, method)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return s
		}
		waiting := func(want int64) {
			t.Helper()
			synctest.Wait()
			if n := service.others.calls.Load(); n != want {
				t.Errorf("%d calls wait, want %d", n, want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		streams := []grpc.ClientStream{
			open(t.Context(), healthpb.Health_Check_FullMethodName),
			open(t.Context(), healthpb.Health_Watch_FullMethodName),
			open(t.Context(), "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"),
		}
		_ = open(t.Context(), "/none/Such").RecvMsg(nil) // it is over at once
		open(ctx, healthpb.Health_Check_FullMethodName)
		waiting(4)
		_, err = health.Check(t.Context(), &healthpb.HealthCheckRequest{})
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "GRPC_MAX_WAITING_CALLS") {
			t.Errorf("a fifth call: %v, want it to be refused", err)
		}
		if _, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("shop", "user=a")); err != nil {
			t.Errorf("ShouldRateLimit meanwhile: %v", err)
		}
		cancel() // resets the stream
		waiting(3)
		if _, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Errorf("after one has gone: %v", err)
		}
		for i, s := range streams {
			if err := s.RecvMsg(new(healthpb.HealthCheckResponse)); status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("stream %d ended with %v, want DEADLINE_EXCEEDED", i, err)
			}
		}
		if took := time.Since(begin); took != messageTime {
			t.Errorf("they ended after %v, want %v", took, messageTime)
		}
		waiting(0)
		if _, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		waiting(0)
		time.Sleep(time.Minute)
		if err := watch.Context().Err(); err != nil {
			t.Errorf("a stream whose message came has ended: %v", err)
		}
	})
}
