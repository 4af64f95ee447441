package rls

import (
	"context"
	"crypto/tls"
	"path"
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
)

// HealthName is a name under which health is reported, as it is under ServiceName and under the empty one.
const HealthName = "ratelimit"

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

// ServerConfig says how the gRPC server serves. The zero value serves in plain text, without reflection.
type ServerConfig struct {
	TLS                   *tls.Config   // nil means plain text
	MaxConnectionAge      time.Duration // GRPC_MAX_CONNECTION_AGE; 0 means no limit, as there
	MaxConnectionAgeGrace time.Duration // GRPC_MAX_CONNECTION_AGE_GRACE, for calls that are then running; 0 means no limit
	Reflection            bool          // GRPC_REFLECTION
	Stats                 stats.Handler // handles each call, for tracing; nil costs nothing
}

// Server is the gRPC server: ShouldRateLimit, health and, if configured, reflection. More services may be registered
// before it serves; their panics are recovered, and their calls counted, by the hooks of the Service.
type Server struct {
	*grpc.Server

	health *health.Server
	end    context.CancelFunc // ends streams that would never end on their own
}

// NewServer returns a Server that answers with s. Health reports that it is not serving until SetServing is called. Its
// workers are started at once, so Shutdown or Stop must be called even if it never serves.
func NewServer(s *Service, c ServerConfig) *Server {
	stopping, end := context.WithCancel(context.Background())
	g := &guard{service: s, stopping: stopping}
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
		grpc.UnaryInterceptor(g.unary),
		grpc.StreamInterceptor(g.stream),
		grpc.InTapHandle(s.arrive),
	}
	secured := insecure.NewCredentials()
	if c.TLS != nil {
		// Clients need not offer HTTP/2 by ALPN, which probes of Envoy do only if told to. Of NewTLS this differs in nothing else.
		secured = alpn.NewTLSWithALPNDisabled(c.TLS)
	}
	options = append(options, grpc.Creds(handshakes{secured, s}))
	if c.Stats != nil {
		options = append(options, grpc.StatsHandler(c.Stats))
	}
	server := &Server{Server: grpc.NewServer(options...), health: health.NewServer(), end: end}
	s.register(server)
	healthpb.RegisterHealthServer(server, shortNames{server.health})
	server.SetServing(false)
	if c.Reflection {
		reflection.Register(server)
	}
	return server
}

// SetServing sets what health reports, under all its names.
func (s *Server) SetServing(ok bool) {
	state := healthpb.HealthCheckResponse_NOT_SERVING
	if ok {
		state = healthpb.HealthCheckResponse_SERVING
	}
	for _, name := range []string{"", HealthName, ServiceName} {
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

// guard intercepts every method except ShouldRateLimit, which recovers its own panics.
type guard struct {
	service  *Service
	stopping context.Context //nolint:containedctx // ends with the server, to end streams
}

//nolint:ireturn // as grpc wants it
func (g *guard) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (response any, err error) {
	messageCame(ctx)
	start, method := time.Now(), path.Base(info.FullMethod)
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // a bug met by one call must not end the process
			response, err = nil, g.service.recovered(ctx, method, p)
		}
		g.service.config.Hooks.Call(method, time.Since(start).Seconds())
	}()
	return next(ctx, request)
}

// stream does not call Hooks.Call: how long somebody watches says nothing about this server.
func (g *guard) stream(impl any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	closed, err := holdOpen(stream.Context())
	if err != nil {
		return err
	}
	defer closed()
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(g.stopping, cancel)()
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // as above
			err = g.service.recovered(ctx, path.Base(info.FullMethod), p)
		}
	}()
	return next(impl, endingStream{ServerStream: stream, ctx: ctx})
}

// endingStream is a stream whose context ends with the server.
type endingStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // the stream's, as in grpc.ServerStream
}

// Context implements grpc.ServerStream.
func (s endingStream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream.
func (s endingStream) RecvMsg(m any) error {
	return receive(s.ctx, func() error { return s.ServerStream.RecvMsg(m) })
}
