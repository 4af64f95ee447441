package admin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Bounds of requests over HTTP.
const (
	maxBody = 256 << 10 // bytes
	maxHTTP = 16        // requests at a time, without those that watch; further ones are refused
	lineFor = 30 * time.Second
)

// watchPath is the path of Watch, whose answer does not end.
const watchPath = "/admin/v1/watch"

// Handler serves the API as JSON over HTTP, as http.yaml beside the service says, to whom access lets in. Watch is a stream of
// lines, each an object with a result or an error. What a caller sent as x-request-id over gRPC is a header here.
func (s *Service) Handler(ctx context.Context, access Access) (http.Handler, error) {
	access.Log = s.access.Log
	v := *s
	v.access = access
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, &runtime.JSONPb{MarshalOptions: protojson.MarshalOptions{EmitUnpopulated: true}}),
		runtime.WithIncomingHeaderMatcher(isRequestID), // and authorization, which is passed on always
		runtime.WithOutgoingHeaderMatcher(isRequestID),
		runtime.WithOutgoingTrailerMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithDisableHTTPMethodOverride(),
		runtime.WithErrorHandler(failed),
	)
	if err := adminv1.RegisterAdminServiceHandlerClient(ctx, mux, adminv1.NewAdminServiceClient(direct{&v})); err != nil {
		return nil, err
	}
	turns := make(chan struct{}, maxHTTP)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.WithContext(peer.NewContext(r.Context(), peerOf(r)))
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if r.URL.Path == watchPath {
			watched(mux, w, r)
			return
		}
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
			mux.ServeHTTP(w, r)
		default:
			http.Error(w, "too many calls of the admin API at once; try again later", http.StatusServiceUnavailable)
		}
	}), nil
}

// watched has mux answer r with a stream, once its body has been read, which must not take for ever.
func watched(mux http.Handler, w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "the body cannot be read, or has more than 256 KiB", http.StatusBadRequest)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // which would end the request
	mux.ServeHTTP(&endless{w, control}, r)
}

// failed answers with an error, and says what is wanted where that is a token.
func failed(ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) { //nolint:revive // as the gateway calls it
	if status.Code(err) == codes.Unauthenticated {
		w = bearerWanted{w}
	}
	runtime.DefaultHTTPErrorHandler(ctx, mux, m, w, r, err)
}

// bearerWanted writes a header of its own where the gateway has put its message in.
type bearerWanted struct{ http.ResponseWriter }

// WriteHeader implements [http.ResponseWriter].
func (w bearerWanted) WriteHeader(code int) {
	w.Header().Set("WWW-Authenticate", "Bearer")
	w.ResponseWriter.WriteHeader(code)
}

func isRequestID(key string) (string, bool) {
	return requestID, textproto.CanonicalMIMEHeaderKey(key) == textproto.CanonicalMIMEHeaderKey(requestID)
}

// peerOf returns who made a request, as gRPC has it.
func peerOf(r *http.Request) *peer.Peer {
	p := &peer.Peer{Addr: remote(r)}
	if r.TLS != nil {
		p.AuthInfo = credentials.TLSInfo{State: *r.TLS}
	}
	return p
}

// endless is an answer that may take any time as a whole, but not for one line.
type endless struct {
	http.ResponseWriter
	control *http.ResponseController
}

// Write implements [io.Writer].
func (w *endless) Write(b []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(lineFor))
	return w.ResponseWriter.Write(b)
}

// Flush implements [http.Flusher].
func (w *endless) Flush() { _ = w.control.Flush() }

// direct calls a service of this process.
type direct struct{ service adminv1.AdminServiceServer }

// Invoke implements [grpc.ClientConnInterface].
func (d direct) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	desc := &adminv1.AdminService_ServiceDesc
	name := strings.TrimPrefix(method, "/"+desc.ServiceName+"/")
	for i := range desc.Methods {
		if desc.Methods[i].MethodName != name {
			continue
		}
		var sent runtime.ServerTransportStream
		in := grpc.NewContextWithServerTransportStream(incoming(ctx), &sent)
		answer, err := desc.Methods[i].Handler(d.service, in, into(args), nil)
		for _, o := range opts {
			if h, ok := o.(grpc.HeaderCallOption); ok {
				*h.HeaderAddr = sent.Header()
			}
		}
		if err != nil {
			return err
		}
		return into(answer)(reply)
	}
	return status.Errorf(codes.Unimplemented, "unknown method %s", method)
}

// NewStream implements [grpc.ClientConnInterface], for methods that answer one request with a stream.
func (d direct) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) { //nolint:ireturn // as the interface has it
	for _, s := range adminv1.AdminService_ServiceDesc.Streams {
		if s.StreamName == desc.StreamName && !s.ClientStreams {
			return &stream{ctx: ctx, service: d.service, handler: s.Handler, answers: make(chan proto.Message), ended: make(chan struct{})}, nil
		}
	}
	return nil, status.Errorf(codes.Unimplemented, "unknown method %s", method)
}

// incoming returns ctx as the called side has it.
func incoming(ctx context.Context) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx)
	return metadata.NewIncomingContext(ctx, md)
}

// into returns a function that copies a message.
func into(from any) func(any) error {
	return func(to any) error {
		f, ok1 := from.(proto.Message)
		t, ok2 := to.(proto.Message)
		if !ok1 || !ok2 {
			return status.Errorf(codes.Internal, "%T is no message", from)
		}
		proto.Merge(t, f)
		return nil
	}
}

// stream is both sides of a call within this process that is answered with a stream.
type stream struct {
	ctx     context.Context //nolint:containedctx // as streams of gRPC have it
	service any
	handler grpc.StreamHandler
	request any
	answers chan proto.Message
	ended   chan struct{} // closed after err is set
	err     error
}

// Context implements [grpc.ClientStream].
func (s *stream) Context() context.Context { return s.ctx }

// Header implements [grpc.ClientStream].
func (s *stream) Header() (metadata.MD, error) { return nil, nil }

// Trailer implements [grpc.ClientStream].
func (s *stream) Trailer() metadata.MD { return nil }

// CloseSend implements [grpc.ClientStream]: the request has been sent, and the call begins.
func (s *stream) CloseSend() error {
	go func() {
		defer close(s.ended)
		defer func() {
			if v := recover(); v != nil { //nolint:forbidigo // it would end the process
				s.err = status.Error(codes.Internal, "the call ended in a panic")
			}
		}()
		s.err = s.handler(s.service, called{s})
	}()
	return nil
}

// SendMsg implements [grpc.ClientStream].
func (s *stream) SendMsg(m any) error {
	s.request = m
	return nil
}

// RecvMsg implements [grpc.ClientStream].
func (s *stream) RecvMsg(m any) error {
	select {
	case answer := <-s.answers:
		return into(answer)(m)
	case <-s.ended:
		if s.err == nil {
			return io.EOF
		}
		return s.err
	}
}

// called is the side of a stream that answers.
type called struct{ *stream }

// Context implements [grpc.ServerStream].
func (s called) Context() context.Context { return incoming(s.ctx) }

// SetHeader implements [grpc.ServerStream].
func (s called) SetHeader(metadata.MD) error { return nil }

// SendHeader implements [grpc.ServerStream].
func (s called) SendHeader(metadata.MD) error { return nil }

// SetTrailer implements [grpc.ServerStream].
func (s called) SetTrailer(metadata.MD) {}

// RecvMsg implements [grpc.ServerStream].
func (s called) RecvMsg(m any) error { return into(s.request)(m) }

// SendMsg implements [grpc.ServerStream].
func (s called) SendMsg(m any) error {
	answer, ok := m.(proto.Message)
	if !ok {
		return errors.New("no message is sent")
	}
	select {
	case s.answers <- answer:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}
