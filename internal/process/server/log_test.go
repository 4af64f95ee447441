package server

import (
	"log/slog"
	"strings"
	"testing"
)

func TestLevelNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"trace": "trace", "debug": "debug", "info": "info", "warn": "warning", "WARNING": "warning", "error": "error", "Fatal": "error", "panic": "error",
	} {
		for _, format := range []string{"text", "json"} {
			s := parsed(t, "BACKEND_TYPE=memory", "LOG_LEVEL="+name, "LOG_FORMAT="+format)
			var b strings.Builder
			log := NewLogger(&b, s)
			log.Log(t.Context(), slog.Level(s.Log.Level)-1, "below")
			log.Log(t.Context(), slog.Level(s.Log.Level), "at it")
			begin, end := "time=", " level="+want+` msg="at it"`
			if format == "json" {
				begin, end = `{"@timestamp":"`, `","level":"`+want+`","@message":"at it"}`
			}
			if line := strings.TrimSpace(b.String()); !strings.HasPrefix(line, begin) || !strings.HasSuffix(line, end) || strings.Contains(line, "below") {
				t.Errorf("LOG_LEVEL=%s LOG_FORMAT=%s: %s", name, format, line)
			}
		}
	}
}
