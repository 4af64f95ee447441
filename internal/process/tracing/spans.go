package tracing

import (
	"context"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
)

// Limits of the descriptors in a span: their number, and the bytes of each.
const (
	maxDescriptors    = 128
	longestDescriptor = 512
)

// Decider decides requests, as a limiter.Limiter does.
type Decider interface {
	Decide(ctx context.Context, r *limiter.Request, p *limiter.Scratch) (*limiter.Verdict, error)
}

// tracedDecider makes a span for each request that another decider decides.
type tracedDecider struct {
	tracer *Tracer
	next   Decider
}

// Decider puts spans around next.
func (t *Tracer) Decider(next Decider) Decider { //nolint:ireturn // next itself, if t is nil
	if t == nil {
		return next
	}
	return &tracedDecider{t, next}
}

// Decide calls the other decider, within a span.
func (d *tracedDecider) Decide(ctx context.Context, r *limiter.Request, p *limiter.Scratch) (*limiter.Verdict, error) {
	ctx, span := d.tracer.tracer.Start(ctx, "ShouldRateLimit Execution")
	defer span.End()
	if !span.IsRecording() {
		return d.next.Decide(ctx, r, p)
	}
	span.SetAttributes(attribute.String("domain", short(r.Domain)), attribute.Int("descriptors length", len(r.Descriptors)))
	if d.tracer.config.Values {
		span.SetAttributes(attribute.StringSlice("descriptors", texts(r)))
	}
	v, err := d.next.Decide(ctx, r, p)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
		return nil, err
	}
	span.SetAttributes(attribute.Bool("over_limit", v.Over))
	if i := v.Rejection(); i >= 0 {
		span.SetAttributes(attribute.String("rule", short([]byte(v.Statuses[i].RuleName()))))
	}
	return v, nil
}

// texts formats the first descriptors of r.
func texts(r *limiter.Request) []string {
	all := make([]string, 0, len(r.Descriptors))
	for i := range r.Descriptors[:min(len(r.Descriptors), maxDescriptors)] {
		all = append(all, r.Descriptors[i].Text(longestDescriptor))
	}
	return all
}

// Store is the names in spans of a backend.
type Store struct {
	Span   string // span name, such as Redis Pipeline Execution
	Length string // attribute with the number of operations, such as pipeline length
}

// tracedStore traces the calls of a backend.
type tracedStore struct {
	backend.Backend
	tracer *Tracer
	names  Store
}

// Backend wraps b with spans.
func (t *Tracer) Backend(b backend.Backend, names Store) backend.Backend {
	if t == nil {
		return b
	}
	return &tracedStore{Backend: b, tracer: t, names: names}
}

// Apply implements [backend.Backend].
func (s *tracedStore) Apply(ctx context.Context, ops []backend.Op) {
	ctx, span := s.tracer.tracer.Start(ctx, s.names.Span, trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	s.Backend.Apply(ctx, ops)
	if !span.IsRecording() {
		return
	}
	failed := 0
	for i := range ops {
		if ops[i].Err == nil {
			continue
		}
		if failed++; failed == 1 {
			span.SetStatus(codes.Error, ops[i].Err.Error())
		}
	}
	span.SetAttributes(attribute.Int(s.names.Length, len(ops)), attribute.Int("failed", failed))
}

// jsonPath is the path of JSON requests.
const jsonPath = "/json"

// Handler extracts the trace context of requests to /json and calls next.
func (t *Tracer) Handler(next http.Handler) http.Handler {
	if t == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path, _, _ := strings.Cut(r.RequestURI, "?"); path == jsonPath {
			r = r.WithContext(t.propagators.Extract(r.Context(), propagation.HeaderCarrier(r.Header)))
		}
		next.ServeHTTP(w, r)
	})
}

// JSON traces the requests to /json that next answers.
func (t *Tracer) JSON(next func(context.Context, []byte) (int, string, []byte)) func(context.Context, []byte) (int, string, []byte) {
	if t == nil {
		return next
	}
	return func(ctx context.Context, body []byte) (code int, contentType string, answer []byte) {
		ctx, span := t.tracer.Start(ctx, "POST "+jsonPath, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
			attribute.String("http.request.method", http.MethodPost), attribute.String("http.route", jsonPath)))
		defer span.End()
		code, contentType, answer = next(ctx, body)
		span.SetAttributes(attribute.Int("http.response.status_code", code))
		if code >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(code))
		}
		return code, contentType, answer
	}
}
