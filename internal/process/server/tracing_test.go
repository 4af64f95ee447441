package server

import (
	"log/slog"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/tracing"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
)

// TestNoTracingIsNothing: without tracing there are no wrappers, so it costs nothing.
func TestNoTracingIsNothing(t *testing.T) {
	t.Parallel()
	var s settings.Settings
	tracer, err := newTracing(t.Context(), &s, slog.New(slog.DiscardHandler))
	if tracer != nil || err != nil {
		t.Fatalf("%v, %v; want nil", tracer, err)
	}
	store := memory.New(memory.Config{})
	if got := tracer.Backend(store, tracing.Store{}); got != backend.Backend(store) {
		t.Errorf("the store is a %T", got)
	}
}
