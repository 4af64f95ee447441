// Package tracing optionally sends spans of requests over OTLP.
//
// A request is a span of the gRPC server or of /json. It contains a span of the decision, which contains a span of each backend
// call. Wrappers create the spans. Without tracing there are no wrappers, so it costs nothing, and the wrapped code does not know
// about tracing. Spans contain values of descriptors only if configured.
//
// The exporters read the destination, headers, and certificates from the variables OTEL_EXPORTER_OTLP_…. If a collector is down or
// does not answer, spans are lost, but nothing waits.
//
// This package is part of the process.
package tracing

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"go.opentelemetry.io/contrib/propagators/b3"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/stats"

	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
)

// scope is the instrumentation scope of this package's spans.
const scope = "github.com/ratelimitd/ratelimitd"

// logEvery is the minimum interval between two log lines about export errors.
const logEvery = 10 * time.Second

// Config configures the spans and their export.
type Config struct {
	Service   string  // TRACING_SERVICE_NAME; empty omits it, like Namespace
	Namespace string  // TRACING_SERVICE_NAMESPACE
	Instance  string  // TRACING_SERVICE_INSTANCE_ID; random if empty
	Protocol  string  // TRACING_EXPORTER_PROTOCOL, http or grpc; empty means http
	Rate      float64 // TRACING_SAMPLING_RATE from 0 to 1, for requests without a sampling decision by their caller
	Values    bool    // TRACING_VALUES: spans contain values of descriptors, which are data of end users

	Flush time.Duration // maximum time for sending at the end; 0 means 5 s
	Log   *slog.Logger  // nil discards
}

// Tracer makes spans and sends them. It is safe for concurrent use. It is a task: [Tracer.Run] sends the last spans when its
// context ends. A nil Tracer puts no spans around anything.
type Tracer struct {
	config      Config
	provider    *sdk.TracerProvider
	tracer      trace.Tracer
	propagators propagation.TextMapPropagator
	throttle    *throttle.Log
}

// New returns a Tracer, which begins to send immediately, so that [Tracer.Run] must be called to end it. It does not wait for a
// collector. The Tracer becomes the process-wide error handler of OpenTelemetry, which has no other way to report errors.
func New(ctx context.Context, c Config) (*Tracer, error) {
	if c.Flush == 0 {
		c.Flush = 5 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { // until there is the Tracer
		c.Log.WarnContext(ctx, "an OpenTelemetry variable is ignored", "error", err)
	}))
	exporter, err := newExporter(ctx, c.Protocol)
	if err != nil {
		return nil, fmt.Errorf("preparing to send traces over %s: %w", c.Protocol, err)
	}
	t := &Tracer{
		config: c,
		provider: sdk.NewTracerProvider(
			sdk.WithBatcher(exporter),
			sdk.WithResource(c.resource()),
			sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(c.Rate))),
		),
		propagators: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, b3.New(), propagation.Baggage{}),
		throttle:    throttle.Every(logEvery),
	}
	t.tracer = t.provider.Tracer(scope)
	otel.SetErrorHandler(t)
	return t, nil
}

//nolint:ireturn // the exporters of both protocols are of one type that has no other name
func newExporter(ctx context.Context, protocol string) (sdk.SpanExporter, error) {
	switch protocol {
	case "", "http":
		return otlptracehttp.New(ctx)
	case "grpc":
		return otlptracegrpc.New(ctx)
	default:
		return nil, fmt.Errorf("protocol %q: must be http or grpc", protocol)
	}
}

// resource returns the identity of this process in spans.
func (c *Config) resource() *resource.Resource {
	instance := c.Instance
	if instance == "" {
		instance = randomID()
	}
	attributes := []attribute.KeyValue{attribute.String("service.instance.id", instance)}
	if c.Service != "" {
		attributes = append(attributes, attribute.String("service.name", c.Service))
	}
	if c.Namespace != "" {
		attributes = append(attributes, attribute.String("service.namespace", c.Namespace))
	}
	return resource.NewSchemaless(attributes...)
}

// randomID returns a random version 4 UUID.
func randomID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// String returns the name of the task.
func (t *Tracer) String() string { return "tracing" }

// Run waits until ctx ends, and then sends the remaining spans for at most Config.Flush. Spans that remain are lost,
// which is logged.
func (t *Tracer) Run(ctx context.Context) error {
	<-ctx.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.config.Flush)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.config.Log.WarnContext(ctx, "spans were lost, because they could not be sent before the server stopped", "error", err)
	}
	return nil
}

// Handle implements [otel.ErrorHandler]. It logs export errors, at most every ten seconds, with the number of omitted
// ones.
func (t *Tracer) Handle(err error) {
	t.throttle.Through(t.config.Log, "").Warn("traces cannot be sent: spans are lost", "error", err)
}

// Server returns a handler that traces calls of a gRPC server, except health checks, as part of the caller's trace, if
// any.
//
//nolint:ireturn // grpc and OpenTelemetry have no other type for it
func (t *Tracer) Server() stats.Handler {
	if t == nil {
		return nil
	}
	return otelgrpc.NewServerHandler(append(t.options(), otelgrpc.WithFilter(filters.Not(filters.HealthCheck())))...)
}

// Client returns a handler that traces calls of a gRPC client.
//
//nolint:ireturn // as above
func (t *Tracer) Client() stats.Handler { return otelgrpc.NewClientHandler(t.options()...) }

func (t *Tracer) options() []otelgrpc.Option {
	return []otelgrpc.Option{otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithPropagators(t.propagators)}
}

// short returns s as an attribute value: valid UTF-8, no longer than a reasonable domain.
func short(s []byte) string {
	const longest = 256
	if len(s) > longest {
		return strings.ToValidUTF8(string(s[:longest]), "\uFFFD") + "…"
	}
	return strings.ToValidUTF8(string(s), "\uFFFD")
}
