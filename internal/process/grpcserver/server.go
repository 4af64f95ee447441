// Package grpcserver is the gRPC server: its options and bounds, its health, and the steps that every call takes. Others register
// their services on it.
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

// HealthName is a name under which health is reported, as it is under that of the service and under the empty one.
const HealthName = "ratelimit"

// MaxMessage is the size in bytes of the largest message that is accepted.
const MaxMessage = 4 << 20

// Bounds on what one client may cost.
const (
	maxStreams       = 1024 // open calls of one connection; grpc also bounds rapid resets by it
	maxHeaderList    = 64 << 10
	connWindow       = 4 << 20  // what one connection may send ahead, so that a busy server does not keep it from sending
	readBuffer       = 16 << 10 // of each connection, and most of what an idle one takes; grpc's 32 KiB made no call cheaper
	handshakeTimeout = 10 * time.Second
	pingEvery        = 10 * time.Second // clients may ping this often, as Envoy does
	probeEvery       = 60 * time.Second // an idle connection is probed
	probeTimeout     = 10 * time.Second
)

// workers is how many goroutines stand by for calls; further calls get a new one each. A call needs more stack than a
// new goroutine has, and growing it was a fifth of the cost of a call. They take turns, so with 512 of them, which a surge
// would keep busy, a request cost an eighth to a quarter more: their stacks no longer fit into the caches.
const workers = 128

// Service is the service that a fleet calls. It has one method, whose calls are received and answered without protobuf's codec: a
// message is received into a [Receiver], and an answer is a [Sender].
type Service interface {
	// Name returns the service's name, and Method that of its method.
	Name() string
	Method() string
	// LetIn is called for each call of the method as soon as its headers have been read, by the goroutine that reads the
	// connection. It must not block. An error ends the call. Where there is none, the handler must call [Arrival.Received] when the
	// message has come.
	LetIn(conn *netlimit.Conn) error
	// Register registers the service.
	Register(r grpc.ServiceRegistrar)
}

// Config configures a Server. Its zero value serves in plain text, without reflection.
type Config struct {
	TLS                   *tls.Config     // nil means plain text
	ClearSocket           string          // path of a unix socket whose connections are in plain text all the same
	MaxConnectionAge      time.Duration   // GRPC_MAX_CONNECTION_AGE; 0 means no limit, as there
	MaxConnectionAgeGrace time.Duration   // GRPC_MAX_CONNECTION_AGE_GRACE, for calls that are then running; 0 means no limit
	Reflection            bool            // GRPC_REFLECTION
	Tracing               rpc.Handler     // handles each call; may be nil
	Registry              *stats.Registry // counts calls, how long they took, and panics; nil makes one
	Log                   *slog.Logger    // nil discards

	// Handshake is called for each failed TLS handshake, with the client's address and the reason, such as [ErrNothingSent]. It may
	// be nil.
	Handshake func(peer net.Addr, err error)
	// Began is called with the protocol that each connection begins with, inside TLS if there is some. It may be nil.
	Began func(peer net.Addr, p netlimit.Protocol)
}

// Server serves a [Service], health and, if configured, reflection. More services may be registered before it serves;
// their panics are recovered, and their calls counted.
type Server struct {
	*grpc.Server

	config  Config
	service Service
	panics  *count.Counter
	large   *throttle.Log // of messages that are too large, by method
	method  string        // in full
	health  *health.Server
	stopped context.Context    //nolint:containedctx // ends with the server, to end streams
	end     context.CancelFunc // ends streams that would never end on their own
}

// New returns a Server of service. Health reports that it is not serving until SetServing is called. Its workers start immediately,
// so Shutdown or Stop must be called even if it never serves.
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
		grpc.WaitForHandlers(true), // so that nothing uses the backend after Stop
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		grpc.InTapHandle(s.tap),
	}
	secured := insecure.NewCredentials()
	if c.TLS != nil {
		// As NewTLS, but clients need not offer HTTP/2 by ALPN: probes of Envoy offer it only where that is configured.
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

// SetServing sets what health reports, under all its names.
func (s *Server) SetServing(ok bool) {
	state := healthpb.HealthCheckResponse_NOT_SERVING
	if ok {
		state = healthpb.HealthCheckResponse_SERVING
	}
	for _, name := range []string{"", HealthName, s.service.Name()} {
		s.health.SetServingStatus(name, state)
	}
}

// Shutdown stops accepting and ends the streams that watch health. It lets the other calls finish until ctx ends, and then cuts off
// the rest. No handler runs any more once it has returned.
func (s *Server) Shutdown(ctx context.Context) {
	s.end()
	stop := context.AfterFunc(ctx, s.Stop)
	s.GracefulStop()
	stop()
}

// maxName is the length of the longest service name in a health check, in bytes.
const maxName = 256

// shortNames is a health server that rejects long names. The health server of grpc keeps the names that are watched, known or not,
// until their streams end.
type shortNames struct{ *health.Server }

// Watch implements healthpb.HealthServer.
func (s shortNames) Watch(q *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	if len(q.GetService()) > maxName {
		return errLongName
	}
	return s.Server.Watch(q, stream)
}

// Serve serves on l until the server is stopped. If l does not bound what its clients may take, Serve does, with the usual bounds.
func (s *Server) Serve(l net.Listener) error {
	if _, ok := l.(*netlimit.Listener); !ok {
		l = netlimit.Listen(l, netlimit.Config{})
	}
	return s.Server.Serve(l)
}

// unary wraps every method with one message each way, except that of the service, which wraps its own.
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

// stream wraps every method with several messages. It does not observe how long its calls take: how long a client watches says
// nothing about this server.
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

// recovered logs and counts a panic, and returns the error for the caller.
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

// Context implements grpc.ServerStream.
func (s endingStream) Context() context.Context { return s.ctx }

// SendMsg implements grpc.ServerStream.
func (s endingStream) SendMsg(m any) error { return s.ServerStream.SendMsg(reply{m, s.of.Conn}) }

// RecvMsg implements grpc.ServerStream.
func (s endingStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	s.of.Received(0, err)
	return err
}
