package server

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/tracing"
)

// newTracing returns the tracer, or nil if TRACING_ENABLED is false.
func newTracing(ctx context.Context, s *settings.Settings, log *slog.Logger) (*tracing.Tracer, error) {
	if !s.Tracing.On {
		return nil, nil //nolint:nilnil // tracing is off
	}
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
	return t, nil
}
