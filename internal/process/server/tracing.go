package server

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel"

	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/tracing"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
)

// newTracing returns the tracer, or nil if TRACING_ENABLED is off. It sets the process-wide error handler of
// OpenTelemetry, which has no other way to report errors, to the tracer.
func newTracing(ctx context.Context, s *settings.Settings, log *slog.Logger) (*tracing.Tracer, error) {
	if !s.Tracing.On {
		return nil, nil //nolint:nilnil // there is none
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { // until there is the Tracer
		log.WarnContext(ctx, "an OpenTelemetry variable is ignored", "error", err)
	}))
	t, err := tracing.New(ctx, tracing.Config{
		Service:   s.Tracing.Service,
		Namespace: s.Tracing.Namespace,
		Instance:  s.Tracing.Instance,
		Protocol:  strings.ToLower(s.Tracing.Protocol),
		Rate:      s.Tracing.Rate,
		Values:    s.Tracing.Values,
		Log:       log,
	})
	if err != nil {
		return nil, fmt.Errorf("%w (the OTEL_EXPORTER_OTLP_ variables)", err)
	}
	otel.SetErrorHandler(t)
	return t, nil
}

// tracedStore wraps b in spans if tracing is on, with the reference's names where it has such a store. It sits between what
// answers from memory and the store.
func tracedStore(t *tracing.Tracer, b backend.Backend, names tracing.Store) backend.Backend {
	if t == nil {
		return b
	}
	return t.Backend(b, names)
}
