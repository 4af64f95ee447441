package tracing

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// The log is not flooded, whatever the number of exports that fail.
func TestErrorsAreSaidNowAndThen(t *testing.T) {
	var b strings.Builder
	now := time.Unix(1_800_000_000, 0)
	tracer := &Tracer{config: Config{Log: slog.New(slog.NewTextHandler(&b, nil))}, now: func() time.Time { return now }}
	for range 1000 {
		tracer.Handle(errors.New("connection refused"))
	}
	now = now.Add(sayAgain)
	tracer.Handle(errors.New("connection refused"))
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "omitted=0") || !strings.Contains(lines[1], "omitted=999") {
		t.Errorf("%d lines:\n%s", len(lines), b.String())
	}
}
