package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/textproto"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Bounds of requests over HTTP.
const (
	maxBody = 256 << 10 // bytes
	lineFor = 30 * time.Second
)

// watchPath is the path of Watch, whose answer is an endless stream.
const watchPath = "/admin/v1/watch"

// Handler serves the API as JSON over HTTP to callers that policy admits. The paths are those of http.yaml beside the service.
// Watch is a stream of lines, each an object with a result or an error. The gRPC metadata x-request-id is a header here.
func (s *Service) Handler(ctx context.Context, policy access.Policy) (http.Handler, error) {
	v := s.behind(policy)
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, &runtime.JSONPb{MarshalOptions: protojson.MarshalOptions{EmitUnpopulated: true}}),
		runtime.WithIncomingHeaderMatcher(isRequestID), // authorization is always forwarded
		runtime.WithOutgoingHeaderMatcher(isRequestID),
		runtime.WithOutgoingTrailerMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithDisableHTTPMethodOverride(),
		runtime.WithDisablePathLengthFallback(),
		runtime.SetQueryParameterParser(new(strict)),
		runtime.WithErrorHandler(failed),
		runtime.WithRoutingErrorHandler(misrouted),
	)
	if err := adminv1.RegisterAdminServiceHandlerClient(ctx, mux, adminv1.NewAdminServiceClient(direct{v})); err != nil {
		return nil, err
	}
	watched := func(w http.ResponseWriter, r *http.Request, _ map[string]string) { v.watched(mux, w, r) }
	if err := mux.HandlePath(http.MethodPost, watchPath, watched); err != nil { // replaces the gateway's handler
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { v.serveHTTP(mux, w, r) }), nil
}

// Client returns a client of the API in this process for callers that policy admits. Their contexts come from
// [access.Policy.Resume].
func (s *Service) Client(policy access.Policy) adminv1.AdminServiceClient { //nolint:ireturn // type of the generated code
	return adminv1.NewAdminServiceClient(direct{s.behind(policy)})
}

// behind returns the methods for callers that policy admits.
func (s *Service) behind(policy access.Policy) methods {
	policy.Log = s.policy.Log
	v := *s
	v.policy = policy
	return methods{Service: &v}
}

// serveHTTP answers r through mux.
func (s *Service) serveHTTP(mux *runtime.ServeMux, w http.ResponseWriter, r *http.Request) {
	ctx := peer.NewContext(r.Context(), access.PeerOf(r))
	r = r.WithContext(ctx)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	// The body of a denied caller is not read.
	if who, err := s.allow(gatewayed(ctx, r), false); err != nil {
		w.Header().Set("Connection", "close") // net/http would otherwise wait for the body
		r.Body = http.NoBody
		mux.ServeHTTP(w, r.WithContext(context.WithValue(ctx, deniedKey{}, &deniedError{who, err})))
		return
	}
	if err := readBody(w, r); err != nil {
		_, m := runtime.MarshalerForRequest(mux, r)
		failed(ctx, mux, m, w, r, err)
		return
	}
	mux.ServeHTTP(w, r)
}

// deniedKey is the context key of *deniedError.
type deniedKey struct{}

// deniedError is the error of a denied caller.
type deniedError struct {
	who access.Who
	err error
}

// gatewayed returns ctx with the credentials of r as incoming metadata.
func gatewayed(ctx context.Context, r *http.Request) context.Context {
	return metadata.NewIncomingContext(ctx, metadata.MD{"authorization": r.Header.Values("Authorization")})
}

// readBody reads the complete body of r, so that nothing waits for it later, and makes checks that the gateway lacks.
func readBody(w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	var wrong *json.SyntaxError
	switch {
	case errors.As(err, &tooLarge):
		err = status.Errorf(codes.InvalidArgument, "the body has more than %d KiB", maxBody>>10)
		return &runtime.HTTPStatusError{HTTPStatus: http.StatusRequestEntityTooLarge, Err: err}
	case err != nil:
		return status.Error(codes.InvalidArgument, "the body is incomplete")
	case r.Method == http.MethodPost && r.URL.RawQuery != "":
		return status.Error(codes.InvalidArgument, "put the request in the body, as JSON: query parameters are not read")
	case len(body) > 0 && errors.As(json.Unmarshal(body, new(json.RawMessage)), &wrong):
		return status.Errorf(codes.InvalidArgument, "the body must be one JSON object, but after %d bytes has an %v", wrong.Offset, wrong)
	}
	r.Body = io.NopCloser(bytes.NewReader(inSeconds(body)))
	return nil
}

var spanField = regexp.MustCompile(`"for"\s*:\s*("[^"\\]+")`)

// inSeconds rewrites the field "for" of a body, such as "1d", as a protobuf duration: "86400s".
func inSeconds(body []byte) []byte {
	at := spanField.FindSubmatchIndex(body)
	if at == nil {
		return body
	}
	d, err := descriptors.ParseSpan(string(body[at[2]+1 : at[3]-1]))
	if err != nil {
		return body // the gateway reports the error
	}
	return slices.Concat(body[:at[2]], strconv.AppendQuote(nil, strconv.FormatFloat(d.Seconds(), 'f', -1, 64)+"s"), body[at[3]:])
}

// watched answers a call of Watch.
func (s *Service) watched(mux *runtime.ServeMux, w http.ResponseWriter, r *http.Request) {
	in, out := runtime.MarshalerForRequest(mux, r)
	q := new(adminv1.WatchRequest)
	if err := in.NewDecoder(r.Body).Decode(q); err != nil && !errors.Is(err, io.EOF) {
		failed(r.Context(), mux, out, w, r, status.Error(codes.InvalidArgument, err.Error()))
		return
	}
	ctx := gatewayed(r.Context(), r)
	next, stop := iter.Pull2(func(yield func(proto.Message, error) bool) {
		err := (methods{Service: s}).Watch(q, &sending{ //nolint:contextcheck // the stream holds the context
			ctx: ctx,
			send: func(m *adminv1.WatchResponse) error {
				if !yield(m, nil) {
					return context.Canceled
				}
				return nil
			},
		})
		yield(nil, cmp.Or(err, io.EOF))
	})
	defer stop()
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // the deadline would end the request
	ctx = runtime.NewServerMetadataContext(ctx, runtime.ServerMetadata{})
	runtime.ForwardResponseStream(ctx, mux, out, &endless{w, control}, r, func() (proto.Message, error) {
		m, err, _ := next()
		return m, err
	})
}

// strict parses query parameters and rejects those that are not fields of the request.
type strict struct{ runtime.DefaultQueryParser }

// Parse implements [runtime.QueryParameterParser].
func (p *strict) Parse(m proto.Message, values url.Values, filter *utilities.DoubleArray) error {
	fields := m.ProtoReflect().Descriptor().Fields()
	for name := range values {
		if fields.ByTextName(name) != nil || fields.ByJSONName(name) != nil {
			continue
		}
		var known []string
		for i := range fields.Len() {
			known = append(known, fields.Get(i).TextName())
		}
		return fmt.Errorf("unknown parameter %s: want one of %s", valid(name), strings.Join(known, ", "))
	}
	return p.DefaultQueryParser.Parse(m, values, filter)
}

// misrouted answers a request that matches no method.
func misrouted(ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) { //nolint:revive // signature of the gateway
	if code != http.StatusMethodNotAllowed {
		runtime.DefaultRoutingErrorHandler(ctx, mux, m, w, r, code)
		return
	}
	verb := http.MethodPost
	switch path.Base(r.URL.Path) {
	case "rules", "controls", "audit", "status":
		verb = http.MethodGet
	}
	w.Header().Set("Allow", verb)
	err := status.Errorf(codes.Unimplemented, "use %s for this: see openapi.swagger.json", verb)
	failed(ctx, mux, m, w, r, &runtime.HTTPStatusError{HTTPStatus: code, Err: err})
}

// failed answers with an error. It asks for a token if the caller sent none.
func failed(ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) { //nolint:revive // signature of the gateway
	switch s := status.Convert(err); {
	case s.Code() == codes.Unauthenticated:
		w = bearerWanted{w}
	case s.Code() == codes.InvalidArgument && strings.HasPrefix(s.Message(), "proto:"):
		err = status.Error(s.Code(), unreadable(s.Message()))
	}
	runtime.DefaultHTTPErrorHandler(ctx, mux, m, w, r, err)
}

// unreadable rewrites protobuf's error about an invalid JSON body.
func unreadable(text string) string {
	text = "the body is invalid: " + strings.TrimLeft(strings.TrimPrefix(text, "proto:"), " \u00a0")
	if strings.Contains(text, "google.protobuf.Duration") {
		text += `: write a duration such as "90s", "2h" or "1d"`
	}
	return text
}

// bearerWanted adds the header WWW-Authenticate to the gateway's answer.
type bearerWanted struct{ http.ResponseWriter }

// WriteHeader implements [http.ResponseWriter].
func (w bearerWanted) WriteHeader(code int) {
	w.Header().Set("WWW-Authenticate", "Bearer")
	w.ResponseWriter.WriteHeader(code)
}

func isRequestID(key string) (string, bool) {
	return requestID, textproto.CanonicalMIMEHeaderKey(key) == textproto.CanonicalMIMEHeaderKey(requestID)
}

// endless is an answer with a deadline for each line, but none in total.
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

// direct is a client connection to the service in this process.
type direct struct{ service methods }

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
		copied := func(to any) error {
			proto.Merge(to.(proto.Message), args.(proto.Message))
			return nil
		}
		answer, err := desc.Methods[i].Handler(d.service, in, copied, d.service.guard)
		for _, o := range opts {
			if h, ok := o.(grpc.HeaderCallOption); ok {
				*h.HeaderAddr = sent.Header()
			}
		}
		if err == nil {
			proto.Merge(reply.(proto.Message), answer.(proto.Message))
		}
		return err
	}
	return status.Errorf(codes.Unimplemented, "unknown method %s", method)
}

// NewStream implements [grpc.ClientConnInterface]. Streaming methods are not supported.
func (direct) NewStream(_ context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) { //nolint:ireturn // signature of the interface
	return nil, status.Errorf(codes.Unimplemented, "unknown method %s", method)
}

// incoming returns ctx with its outgoing metadata as incoming metadata.
func incoming(ctx context.Context) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx)
	return metadata.NewIncomingContext(ctx, md)
}
