package tracing

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
)

// TestErrorsAreLoggedNowAndThen: the log stays small, however many exports fail.
func TestErrorsAreLoggedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b strings.Builder
		tracer := &Tracer{config: Config{Log: slog.New(slog.NewTextHandler(&b, nil))}, throttle: throttle.Every(logEvery)}
		for range 1000 {
			tracer.Handle(errors.New("connection refused"))
		}
		time.Sleep(logEvery)
		tracer.Handle(errors.New("connection refused"))
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "omitted=0") || !strings.Contains(lines[1], "omitted=999") {
			t.Errorf("%d lines:\n%s", len(lines), b.String())
		}
	})
}
