// Package grpcserver is the server of gRPC: its options and bounds, its health, and what every call of it passes. What it
// serves is registered by others.
package grpcserver

import (
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
	"google.golang.org/grpc/stats"

	"github.com/ratelimitd/ratelimitd/internal/netlimit"
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

// Service is what a fleet calls. It has one method, whose calls are received and answered without protobuf's codec: what
// it receives into is a [Receiver], and what it sends a [Sender].
type Service interface {
	// Name returns the service's name, and Method that of its method.
	Name() string
	Method() string
	// Arrive is called for each call of the method as soon as its headers have been read on a connection, which may be
	// nil, by what reads that. It must not block. Its context becomes that of the call; an error ends the call.
	Arrive(ctx context.Context, conn *netlimit.Conn) (context.Context, error)
	// Register registers the service.
	Register(r grpc.ServiceRegistrar)
}

// Config configures a Server. Its zero value serves in plain text, without reflection.
type Config struct {
	TLS                   *tls.Config       // nil means plain text
	ClearSocket           string            // path of a unix socket whose connections are in plain text all the same
	MaxConnectionAge      time.Duration     // GRPC_MAX_CONNECTION_AGE; 0 means no limit, as there
	MaxConnectionAgeGrace time.Duration     // GRPC_MAX_CONNECTION_AGE_GRACE, for calls that are then running; 0 means no limit
	Reflection            bool              // GRPC_REFLECTION
	Stats                 stats.Handler     // handles each call, for tracing; nil costs nothing
	Waiting               *netlimit.Waiting // bounds calls that wait for their message; nil makes one
	Hooks                 Hooks
	Log                   *slog.Logger // nil discards
}

// Hooks are notified of what happens. Each may be nil, and may be called concurrently.
type Hooks struct {
	// Call is called after each answered call, with the method's name and how long it took in seconds.
	Call func(method string, seconds float64)
	// Panic is called after each recovered panic.
	Panic func()
	// Handshake is called for each failed TLS handshake, with the client's address and the reason, which is [ErrNothingSent] where
	// that is so.
	Handshake func(peer net.Addr, err error)
	// Began is called with what the first bytes of each connection are, inside TLS if there is some.
	Began func(peer net.Addr, p netlimit.Protocol)
}

func (h Hooks) withDefaults() Hooks {
	if h.Call == nil {
		h.Call = func(string, float64) {}
	}
	if h.Panic == nil {
		h.Panic = func() {}
	}
	if h.Handshake == nil {
		h.Handshake = func(net.Addr, error) {}
	}
	if h.Began == nil {
		h.Began = func(net.Addr, netlimit.Protocol) {}
	}
	return h
}

// Server serves a [Service], health and, if configured, reflection. More services may be registered before it serves;
// their panics are recovered, and their calls counted, by its hooks.
type Server struct {
	*grpc.Server

	config  Config
	service Service
	method  string // in full
	health  *health.Server
	stopped context.Context    //nolint:containedctx // ends with the server, to end streams
	end     context.CancelFunc // ends streams that would never end on their own
}

// New returns a Server of service. Health reports that it is not serving until SetServing is called. Its workers are
// started at once, so Shutdown or Stop must be called even if it never serves.
func New(service Service, c Config) *Server {
	c.Hooks = c.Hooks.withDefaults()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Waiting == nil {
		c.Waiting = netlimit.NewWaiting(netlimit.Bounds{Metadata: MetadataSize})
	}
	s := &Server{config: c, service: service, method: "/" + service.Name() + "/" + service.Method(), health: health.NewServer()}
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
		grpc.WaitForHandlers(true), // so that nothing uses the store after Stop
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		grpc.InTapHandle(s.tap),
	}
	secured := insecure.NewCredentials()
	if c.TLS != nil {
		// Clients need not offer HTTP/2 by ALPN, which probes of Envoy do only if told to. Of NewTLS this differs in nothing else.
		secured = alpn.NewTLSWithALPNDisabled(c.TLS)
	}
	options = append(options, grpc.Creds(handshakes{secured, c.ClearSocket, c.Hooks}))
	if c.Stats != nil {
		options = append(options, grpc.StatsHandler(c.Stats))
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

// Shutdown stops accepting, ends the streams that watch health, lets the other calls finish until ctx ends, and then cuts
// off what is left. No handler runs any more once it has returned.
func (s *Server) Shutdown(ctx context.Context) {
	s.end()
	stop := context.AfterFunc(ctx, s.Stop)
	s.GracefulStop()
	stop()
}

// maxName is how long a service's name may be in a question for its health, in bytes.
const maxName = 256

// shortNames is a health server that keeps no long names: it keeps those that are watched, known or not, until their streams end.
type shortNames struct{ *health.Server }

// Watch implements healthpb.HealthServer.
func (s shortNames) Watch(q *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	if len(q.GetService()) > maxName {
		return errLongName
	}
	return s.Server.Watch(q, stream)
}

// Serve serves on l until the server is stopped.
func (s *Server) Serve(l net.Listener) error {
	if l, ok := l.(*netlimit.Listener); ok {
		s.config.Waiting.Serve(l)
	}
	return s.Server.Serve(l)
}

// unary is around every method but that of the service, which recovers its own panics.
//
//nolint:ireturn // as grpc wants it
func (s *Server) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (response any, err error) {
	received(ctx)
	start, method := time.Now(), path.Base(info.FullMethod)
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // a bug met by one call must not end the process
			response, err = nil, s.Recovered(ctx, method, p)
		}
		s.config.Hooks.Call(method, time.Since(start).Seconds())
	}()
	return next(ctx, request)
}

// stream does not call Hooks.Call: how long somebody watches says nothing about this server.
func (s *Server) stream(impl any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	if info.FullMethod == s.method {
		return next(impl, stream)
	}
	a, _ := stream.Context().Value(otherKey{}).(*other)
	closed, ok := a.open()
	if !ok {
		return errStreams
	}
	defer closed()
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(s.stopped, cancel)()
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // as above
			err = s.Recovered(ctx, path.Base(info.FullMethod), p)
		}
	}()
	return next(impl, endingStream{ServerStream: stream, ctx: ctx, of: a})
}

// Recovered logs and counts a panic, and returns the error for the caller.
func (s *Server) Recovered(ctx context.Context, method string, p any) error {
	s.config.Hooks.Panic()
	s.config.Log.ErrorContext(ctx, "a call panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
	return errPanic
}

// endingStream is a stream whose context ends with the server.
type endingStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // the stream's, as in grpc.ServerStream
	of  *other
}

// Context implements grpc.ServerStream.
func (s endingStream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream.
func (s endingStream) RecvMsg(m any) error {
	return s.of.receive(func() error { return s.ServerStream.RecvMsg(m) })
}
