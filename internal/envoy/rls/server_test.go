package rls

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ratelimitd/ratelimitd/internal/decide/admission"
	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/internal/process/netlimit"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the maximum wait for events that are usually immediate.
const patience = 30 * time.Second

// decideFunc is a Decider with behavior that a limiter lacks: failures, panics, waits.
type decideFunc func(ctx context.Context, r *limiter.Request, v *limiter.Verdict) error

// Decide implements Decider.
func (f decideFunc) Decide(ctx context.Context, r *limiter.Request, _ *limiter.Scratch) (*limiter.Verdict, error) {
	v := new(limiter.Verdict)
	return v, f(ctx, r, v)
}

// allow admits everything, without limits.
func allow(_ context.Context, r *limiter.Request, v *limiter.Verdict) error {
	*v = limiter.Verdict{Header: -1, Statuses: make([]limiter.Status, len(r.Descriptors))}
	return nil
}

// serve runs server on a loopback port until the test ends.
func serve(t *testing.T, server *grpcserver.Server) (address string) {
	t.Helper()
	l, err := netlimit.ListenTCP(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, server, l)
	return l.Addr().String()
}

// newServer returns a server with service s.
func newServer(s *Service, c grpcserver.Config) *grpcserver.Server {
	c.Registry, c.Log = s.config.Registry, s.config.Log
	return grpcserver.New(s, c)
}

func serveOn(t *testing.T, server *grpcserver.Server, l net.Listener) {
	t.Helper()
	testkit.Run(t, func(context.Context) error { return server.Serve(l) })
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
		defer cancel()
		server.Shutdown(ctx)
	})
}

func dial(t *testing.T, target string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	options = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, options...)
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// caller is a client of a server.
type caller struct {
	ratelimitv3.RateLimitServiceClient
}

func client(t *testing.T, s *grpcserver.Server) caller {
	t.Helper()
	return caller{ratelimitv3.NewRateLimitServiceClient(dial(t, serve(t, s)))}
}

// request returns a request with one descriptor per k=v.
func request(domain string, pairs ...string) *ratelimitv3.RateLimitRequest {
	r := &ratelimitv3.RateLimitRequest{Domain: domain}
	for _, p := range pairs {
		r.Descriptors = append(r.Descriptors, descriptor(p))
	}
	return r
}

// descriptor returns a descriptor with entries k=v, separated by commas.
func descriptor(pairs string) *commonv3.RateLimitDescriptor {
	d := &commonv3.RateLimitDescriptor{}
	for e := range strings.SplitSeq(pairs, ",") {
		k, v, _ := strings.Cut(e, "=")
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: k, Value: v})
	}
	return d
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Fatalf("code %v (%v), want %v", got, err, want)
	}
}

func TestAnswersOverTheWire(t *testing.T) {
	registry := stats.New()
	s := New(decideFunc(func(ctx context.Context, r *limiter.Request, v *limiter.Verdict) error {
		if string(r.Domain) != "shop" || string(r.Descriptors[0].Entries[0].Value) != strings.Repeat("v", 100_000) {
			return fmt.Errorf("the request arrived as %q", r.Domain)
		}
		return allow(ctx, r, v)
	}), Config{Registry: registry})
	c := client(t, newServer(s, grpcserver.Config{}))
	for range 20 { // of many frames each, through pooled buffers
		response, err := c.ShouldRateLimit(t.Context(), request("shop", "k="+strings.Repeat("v", 100_000)))
		if err != nil {
			t.Fatal(err)
		}
		if response.GetOverallCode() != ratelimitv3.RateLimitResponse_OK || len(response.GetStatuses()) != 1 {
			t.Fatalf("answer: %v", response)
		}
	}
	testkit.Eventually(t, "20 calls are counted", func() bool { return registry.Totals("ShouldRateLimit").Calls == 20 })
	if now := registry.Totals("ShouldRateLimit"); now.Within(new(stats.Totals), 1) > patience.Seconds() {
		t.Errorf("a call took %v s", now.Within(new(stats.Totals), 1))
	}
}

func TestErrors(t *testing.T) {
	backend := errors.New("asking the store: connection refused")
	for _, tt := range []struct {
		err  error
		code codes.Code
		text string
		http int
	}{
		{limiter.ErrEmptyDomain, codes.InvalidArgument, "rate limit domain must not be empty", 400},
		{limiter.ErrNoDescriptors, codes.InvalidArgument, "rate limit descriptor list must not be empty", 400},
		{limiter.ErrTooManyDescriptors, codes.InvalidArgument, "a request may have at most 1024 descriptors", 400},
		{limiter.ErrTooManyEntries, codes.InvalidArgument, "a descriptor may have at most 256 entries", 400},
		{limiter.ErrNoRules, codes.Unavailable, "no rate limit configuration loaded: a.yaml:3: no such unit", 400},
		{backend, codes.Unavailable, backend.Error(), 503},
		{context.DeadlineExceeded, codes.Unavailable, "context deadline exceeded", 503}, // the backend's deadline, not the caller's
	} {
		t.Run(tt.text, func(t *testing.T) {
			s := New(decideFunc(func(context.Context, *limiter.Request, *limiter.Verdict) error { return fmt.Errorf("%w", tt.err) }),
				Config{NoRules: func() string { return "a.yaml:3: no such unit" }})
			_, err := client(t, newServer(s, grpcserver.Config{})).ShouldRateLimit(t.Context(), request("d", "k=v"))
			wantCode(t, err, tt.code)
			if got := status.Convert(err).Message(); got != tt.text {
				t.Errorf("text %q, want %q", got, tt.text)
			}
			code, contentType, body := s.JSON(t.Context(), []byte(`{"domain":"d","descriptors":[{}]}`))
			wantBody := map[int]string{400: "Bad Request\n", 503: "Service Unavailable\n"}[tt.http]
			if code != tt.http || contentType != "text/plain; charset=utf-8" || string(body) != wantBody {
				t.Errorf("/json answers %d %s %q, want %d %q", code, contentType, body, tt.http, wantBody)
			}
		})
	}
}

// TestPanicAroundDecisions checks that a panic before or after the decision fails the call but not the process. The connection, whose
// lock grpc holds while a call arrives, must not hang either.
func TestPanicAroundDecisions(t *testing.T) {
	full := admission.New(time.Minute)
	for full.Enter(0) { // fills the gate, so that a call must wait for its turn, for which its domain is determined
	}
	for name, wrap := range map[string]func(*Service) grpcserver.Service{
		"arrival": func(s *Service) grpcserver.Service { return panicking{s} },
		"turn":    func(s *Service) grpcserver.Service { return s },
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			c := grpcserver.Config{Log: slog.New(slog.NewJSONHandler(&log, nil)), Registry: stats.New()}
			service := New(decideFunc(allow), Config{
				Gate: full, Foresee: func([]byte) (known, fails bool) { panic("injected") }, Log: c.Log, Registry: c.Registry,
			})
			conn := dial(t, serve(t, grpcserver.New(wrap(service), c)))
			for range 2 {
				_, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("any", "k=v"))
				wantCode(t, err, codes.Internal)
			}
			if n, told := c.Registry.Counter(stats.PanicsTotal).Load(), strings.Count(log.String(), "a call panicked"); n != 2 || told != 2 || !strings.Contains(log.String(), "server_test.go") {
				t.Errorf("%d panics counted and %d logged, want 2 with the stack:\n%s", n, told, log.String())
			}
			if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), new(healthpb.HealthCheckRequest)); err != nil {
				t.Errorf("health, on the same connection: %v", err)
			}
		})
	}
}

// panicking is a service that panics on the headers of a call.
type panicking struct{ *Service }

func (panicking) LetIn(*netlimit.Conn) error { panic("injected") }

func TestPanicIsOneCallsTrouble(t *testing.T) {
	var log bytes.Buffer
	registry := stats.New()
	panics := registry.Counter(stats.PanicsTotal)
	s := New(decideFunc(func(ctx context.Context, r *limiter.Request, v *limiter.Verdict) error {
		if string(r.Domain) == "bad" {
			panic("injected")
		}
		return allow(ctx, r, v)
	}), Config{
		Log:      slog.New(slog.NewJSONHandler(&log, nil)),
		Registry: registry,
	})
	server := newServer(s, grpcserver.Config{})
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Panicking",
		Methods: []grpc.MethodDesc{{
			MethodName: "Unary",
			Handler: func(_ any, ctx context.Context, dec func(any) error, chain grpc.UnaryServerInterceptor) (any, error) {
				if err := dec(new(emptypb.Empty)); err != nil {
					return nil, err
				}
				return chain(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/test.Panicking/Unary"}, func(context.Context, any) (any, error) { panic("unary") })
			},
		}},
		Streams: []grpc.StreamDesc{{StreamName: "Stream", ServerStreams: true, Handler: func(any, grpc.ServerStream) error { panic("stream") }}},
	}, nil)
	conn := dial(t, serve(t, server))
	c := ratelimitv3.NewRateLimitServiceClient(conn)

	for _, tt := range []struct {
		name string
		call func() error
	}{
		{"injected", func() error { _, err := c.ShouldRateLimit(t.Context(), request("bad", "k=v")); return err }},
		{"unary", func() error {
			return conn.Invoke(t.Context(), "/test.Panicking/Unary", new(emptypb.Empty), new(emptypb.Empty))
		}},
		{"stream", func() error {
			stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/test.Panicking/Stream")
			if err != nil {
				return err
			}
			return stream.RecvMsg(new(emptypb.Empty))
		}},
		{"json", func() error {
			code, _, body := s.JSON(t.Context(), []byte(`{"domain":"bad","descriptors":[{}]}`))
			if code != 500 || string(body) != "Internal Server Error\n" {
				t.Errorf("/json answers %d %q", code, body)
			}
			return grpcserver.ErrPanic
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			log.Reset()
			before := panics.Load()
			wantCode(t, tt.call(), codes.Internal)
			if n := panics.Load() - before; n != 1 {
				t.Errorf("%d panics counted, want 1", n)
			}
			if n := strings.Count(log.String(), "a call panicked"); n != 1 || !strings.Contains(log.String(), "server_test.go") {
				t.Errorf("logged %d times, want once with the stack:\n%s", n, log.String())
			}
		})
	}
	if _, err := c.ShouldRateLimit(t.Context(), request("good", "k=v")); err != nil {
		t.Errorf("after the panics: %v", err)
	}
	testkit.Eventually(t, "calls are counted: two of ShouldRateLimit and the unary one", func() bool {
		return registry.Totals(Method).Calls == 2 && registry.Totals("Unary").Calls == 1
	})
}

func TestHealth(t *testing.T) {
	server := newServer(New(decideFunc(allow), Config{}), grpcserver.Config{})
	c := healthpb.NewHealthClient(dial(t, serve(t, server)))
	for _, tt := range []struct {
		serving bool
		want    healthpb.HealthCheckResponse_ServingStatus
	}{
		{false, healthpb.HealthCheckResponse_NOT_SERVING},
		{true, healthpb.HealthCheckResponse_SERVING},
		{false, healthpb.HealthCheckResponse_NOT_SERVING},
	} {
		server.SetServing(tt.serving)
		for _, name := range []string{"", "ratelimit"} {
			response, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
			if err != nil || response.GetStatus() != tt.want {
				t.Errorf("Check(%q) = %v, %v, want %v", name, response.GetStatus(), err, tt.want)
			}
		}
	}
	_, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"})
	wantCode(t, err, codes.NotFound)
	listed, err := c.List(t.Context(), new(healthpb.HealthListRequest))
	if names := slices.Sorted(maps.Keys(listed.GetStatuses())); err != nil || !slices.Equal(names, []string{"", ServiceName, "ratelimit"}) {
		t.Errorf("List has %q, %v", names, err)
	}
}

// TestHealthIsWatched checks that watchers of health receive each change, under both names.
func TestHealthIsWatched(t *testing.T) {
	server := newServer(New(decideFunc(allow), Config{}), grpcserver.Config{})
	c := healthpb.NewHealthClient(dial(t, serve(t, server)))
	next := func(watch healthpb.Health_WatchClient, want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if response, err := watch.Recv(); err != nil || response.GetStatus() != want {
			t.Fatalf("told %v, %v; want %v", response.GetStatus(), err, want)
		}
	}
	for _, name := range []string{"", "ratelimit"} {
		server.SetServing(false)
		watch, err := c.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: name})
		if err != nil {
			t.Fatal(err)
		}
		next(watch, healthpb.HealthCheckResponse_NOT_SERVING)
		for _, serving := range []bool{true, false, true} {
			server.SetServing(serving)
			want := healthpb.HealthCheckResponse_NOT_SERVING
			if serving {
				want = healthpb.HealthCheckResponse_SERVING
			}
			next(watch, want)
		}
	}
	watch, err := c.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "other"})
	if err != nil {
		t.Fatal(err)
	}
	next(watch, healthpb.HealthCheckResponse_SERVICE_UNKNOWN)
}

// TestShutdownEndsWatches shuts down during a client's endless watch of health, which would block a graceful stop.
func TestShutdownEndsWatches(t *testing.T) {
	release, entered := make(chan struct{}), make(chan struct{})
	server := newServer(New(decideFunc(func(ctx context.Context, r *limiter.Request, v *limiter.Verdict) error {
		close(entered)
		<-release
		return allow(ctx, r, v)
	}), Config{}), grpcserver.Config{})
	conn := dial(t, serve(t, server))
	watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("d", "k=v"))
		answered <- err
	}()
	<-entered
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		server.Shutdown(t.Context())
	}()
	if _, err := watch.Recv(); err == nil {
		t.Error("the watch goes on")
	}
	select {
	case <-stopped:
		t.Fatal("stopped while a call was running")
	default:
	}
	close(release)
	if err := <-answered; err != nil {
		t.Errorf("the running call was not finished: %v", err)
	}
	<-stopped
}

// TestShutdownIsBounded shuts down during a call that ends only with its context.
func TestShutdownIsBounded(t *testing.T) {
	entered, left := make(chan struct{}), atomic.Bool{}
	server := newServer(New(decideFunc(func(ctx context.Context, _ *limiter.Request, _ *limiter.Verdict) error {
		close(entered)
		<-ctx.Done()
		left.Store(true)
		return ctx.Err()
	}), Config{}), grpcserver.Config{})
	c := client(t, server)
	answered := make(chan error, 1)
	go func() {
		_, err := c.ShouldRateLimit(t.Context(), request("d", "k=v"))
		answered <- err
	}()
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	server.Shutdown(ctx)
	if !left.Load() {
		t.Error("a handler runs after Shutdown")
	}
	wantCode(t, <-answered, codes.Unavailable)
}

func TestReflection(t *testing.T) {
	for _, on := range []bool{false, true} {
		t.Run(fmt.Sprint(on), func(t *testing.T) {
			conn := dial(t, serve(t, newServer(New(decideFunc(allow), Config{}), grpcserver.Config{Reflection: on})))
			stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ask := func(r *reflectionpb.ServerReflectionRequest) (*reflectionpb.ServerReflectionResponse, error) {
				if err := stream.Send(r); err != nil && !errors.Is(err, io.EOF) { // EOF: Recv returns the reason
					return nil, err
				}
				return stream.Recv()
			}
			list, err := ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
			if !on {
				wantCode(t, err, codes.Unimplemented)
				return
			}
			if err != nil || !strings.Contains(list.String(), ServiceName) {
				t.Fatalf("services: %v, %v", list, err)
			}
			file, err := ask(&reflectionpb.ServerReflectionRequest{
				MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: ServiceName + ".ShouldRateLimit"},
			})
			if err != nil || len(file.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
				t.Errorf("the method's file: %v, %v", file, err)
			}
			if err := stream.CloseSend(); err != nil {
				t.Error(err)
			}
		})
	}
}
