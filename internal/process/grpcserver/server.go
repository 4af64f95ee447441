// Package grpcserver is the gRPC server: its options and limits, its health service, and the interceptors of all calls. Other
// packages register their services on it.
//
// This package is part of the process.
package grpcserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"path"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	alpn "google.golang.org/grpc/experimental/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	rpc "google.golang.org/grpc/stats"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
	"github.com/ratelimitd/ratelimitd/internal/process/netlimit"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
)

// HealthName is an additional service name of the health service, besides the served service's and the empty one.
const HealthName = "ratelimit"

// MaxMessage is the maximum size of a message in bytes.
const MaxMessage = 4 << 20

// Limits of one client's costs.
const (
	maxStreams       = 1024 // open calls of one connection; grpc also limits rapid resets by this
	maxHeaderList    = 64 << 10
	connWindow       = 4 << 20  // flow control window of a connection, large enough that a busy server does not block its client
	readBuffer       = 16 << 10 // of each connection, most of the memory of an idle one; grpc's 32 KiB made no call cheaper
	handshakeTimeout = 10 * time.Second
	pingEvery        = 10 * time.Second // minimum interval of a client's pings; Envoy pings this often
	probeEvery       = 60 * time.Second // interval of probing an idle connection
	probeTimeout     = 10 * time.Second
)

// workers is the number of goroutines that wait for calls; further calls get new goroutines. A call needs more stack than
// a new goroutine has, and growing it was a fifth of the cost of a call. Workers take turns. With 512 of them, a surge
// made each request cost an eighth to a quarter more, because their stacks exceeded the caches.
const workers = 128

// Service is the main service. It has one method, which bypasses protobuf's codec: a [Receiver] receives the encoded message, and
// a [Sender] is the encoded answer.
type Service interface {
	// Name returns the name of the service, and Method the name of its method.
	Name() string
	Method() string
	// LetIn is called for each call of the method when its headers have been read, by the goroutine that reads the connection. It
	// must not block. An error ends the call. Otherwise the handler must call [Arrival.Received] when the message has arrived.
	LetIn(conn *netlimit.Conn) error
	// Register registers the service.
	Register(r grpc.ServiceRegistrar)
}

// Config configures a Server. The zero value serves plaintext without reflection.
type Config struct {
	TLS                   *tls.Config     // nil means plaintext
	ClearSocket           string          // path of a unix socket that serves plaintext even with TLS
	MaxConnectionAge      time.Duration   // GRPC_MAX_CONNECTION_AGE; 0 means no limit
	MaxConnectionAgeGrace time.Duration   // GRPC_MAX_CONNECTION_AGE_GRACE, for calls in progress at that age; 0 means no limit
	Reflection            bool            // GRPC_REFLECTION
	Tracing               rpc.Handler     // traces each call; may be nil
	Registry              *stats.Registry // for counts, response times, and panics of calls; nil creates one
	Log                   *slog.Logger    // nil discards

	// Handshake is called for each failed TLS handshake, with the client's address and the reason, such as [ErrNothingSent]. It may
	// be nil.
	Handshake func(peer net.Addr, err error)
	// Began is called with the first protocol of each connection, inside TLS if used. It may be nil.
	Began func(peer net.Addr, p netlimit.Protocol)
}

// Server serves a [Service], health, and optionally reflection. Further services may be registered before Serve; the
// server recovers their panics and counts their calls.
type Server struct {
	*grpc.Server

	config  Config
	service Service
	panics  *count.Counter
	large   *throttle.Log // logs excessive messages by method
	method  string        // full name
	health  *health.Server
	stopped context.Context    //nolint:containedctx // ends with the server, to end streams
	end     context.CancelFunc // ends streams that would never end by themselves
}

// New returns a Server of service. Health reports not serving until SetServing. New starts workers, so the caller must call
// Shutdown or Stop even without Serve.
func New(service Service, c Config) *Server {
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	c.Registry = cmp.Or(c.Registry, stats.New())
	s := &Server{
		config: c, service: service, method: "/" + service.Name() + "/" + service.Method(),
		panics: c.Registry.Counter(stats.PanicsTotal), health: health.NewServer(), large: throttle.Every(time.Minute),
	}
	s.stopped, s.end = context.WithCancel(context.Background())
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{protobuf: encoding.GetCodecV2(proto.Name)}),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.InitialConnWindowSize(connWindow),
		grpc.MaxHeaderListSize(maxHeaderList),
		grpc.ReadBufferSize(readBuffer),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingEvery, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge:      c.MaxConnectionAge,
			MaxConnectionAgeGrace: c.MaxConnectionAgeGrace,
			Time:                  probeEvery,
			Timeout:               probeTimeout,
		}),
		grpc.NumStreamWorkers(workers),
		grpc.WaitForHandlers(true), // no handler uses the backend after Stop
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		grpc.InTapHandle(s.tap),
	}
	secured := insecure.NewCredentials()
	if c.TLS != nil {
		// Unlike NewTLS, this does not require HTTP/2 in ALPN: Envoy's probes offer it only if configured.
		secured = alpn.NewTLSWithALPNDisabled(c.TLS)
	}
	options = append(options, grpc.Creds(handshakes{secured, &s.config}))
	if c.Tracing != nil {
		options = append(options, grpc.StatsHandler(c.Tracing))
	}
	s.Server = grpc.NewServer(options...)
	service.Register(s)
	healthpb.RegisterHealthServer(s, shortNames{s.health})
	s.SetServing(false)
	if c.Reflection {
		reflection.Register(s)
	}
	return s
}

// SetServing sets the state that health reports, for all names.
func (s *Server) SetServing(ok bool) {
	state := healthpb.HealthCheckResponse_NOT_SERVING
	if ok {
		state = healthpb.HealthCheckResponse_SERVING
	}
	for _, name := range []string{"", HealthName, s.service.Name()} {
		s.health.SetServingStatus(name, state)
	}
}

// Shutdown stops accepting connections and ends streams that watch health. It waits for other calls until ctx ends, and then
// cancels them. When it returns, no handler is running.
func (s *Server) Shutdown(ctx context.Context) {
	s.end()
	stop := context.AfterFunc(ctx, s.Stop)
	s.GracefulStop()
	stop()
}

// maxName is the maximum length of a service name in a health check, in bytes.
const maxName = 256

// shortNames is a health server that rejects long names, because grpc's keeps watched names, known or not, until their streams
// end.
type shortNames struct{ *health.Server }

// Watch implements [healthpb.HealthServer].
func (s shortNames) Watch(q *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	if len(q.GetService()) > maxName {
		return errLongName
	}
	return s.Server.Watch(q, stream)
}

// Serve serves on l until the server stops. If l has no limits, Serve applies the default limits.
func (s *Server) Serve(l net.Listener) error {
	if _, ok := l.(*netlimit.Listener); !ok {
		l = netlimit.Listen(l, netlimit.Config{})
	}
	return s.Server.Serve(l)
}

// unary intercepts all methods with one message each way, except the service's, which has its own interceptor.
//
//nolint:ireturn // as grpc wants it
func (s *Server) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (response any, err error) {
	a := ArrivalOf(ctx)
	a.Received(0, nil)
	start, method := time.Now(), path.Base(info.FullMethod)
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // a bug met by one call must not end the process
			response, err = nil, s.recovered(ctx, method, p)
		}
		s.config.Registry.ObserveCall(method, time.Since(start).Seconds())
		if err == nil {
			response = reply{response, a.Conn}
		}
	}()
	return next(ctx, request)
}

// stream intercepts all methods with streams of messages. It does not measure their duration, because clients decide how long
// they watch.
func (s *Server) stream(impl any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // as above
			err = s.recovered(stream.Context(), path.Base(info.FullMethod), p)
		}
	}()
	a := ArrivalOf(stream.Context())
	closed, ok := a.Conn.Open()
	if !ok {
		return errStreams
	}
	defer closed()
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(s.stopped, cancel)()
	ending := endingStream{ServerStream: stream, ctx: ctx, of: a}
	if info.IsClientStream {
		return next(impl, &messages{endingStream: ending, from: grpc.ServerTransportStreamFromContext(stream.Context()).(transport)})
	}
	return next(impl, ending)
}

// recovered logs and counts a panic, and returns the error of the call.
func (s *Server) recovered(ctx context.Context, method string, p any) error {
	s.panics.Add(1)
	s.config.Log.ErrorContext(ctx, "a call panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
	return ErrPanic
}

// endingStream is a stream whose context ends with the server.
type endingStream struct {
	grpc.ServerStream

	ctx context.Context //nolint:containedctx // the stream's, as in grpc.ServerStream
	of  *Arrival
}

// Context implements [grpc.ServerStream].
func (s endingStream) Context() context.Context { return s.ctx }

// SendMsg implements [grpc.ServerStream].
func (s endingStream) SendMsg(m any) error { return s.ServerStream.SendMsg(reply{m, s.of.Conn}) }

// RecvMsg implements [grpc.ServerStream].
func (s endingStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	s.of.Received(0, err)
	return err
}
