package server

import (
	"io"
	"log/slog"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/process/settings"
)

// NewLogger returns the configured logger. It uses the reference's names: lower-case levels and, in JSON, @timestamp and
// @message.
func NewLogger(w io.Writer, s settings.Settings) *slog.Logger {
	asJSON := s.Log.Format == "json"
	o := &slog.HandlerOptions{Level: slog.Level(s.Log.Level), ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) > 0 {
			return a
		}
		switch {
		case a.Key == slog.LevelKey:
			a.Value = slog.StringValue(levelName(a.Value))
		case a.Key == slog.TimeKey && asJSON:
			a.Key = "@timestamp"
		case a.Key == slog.MessageKey && asJSON:
			a.Key = "@message"
		}
		return a
	}}
	if asJSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// NewAuditLogger returns a logger for changes by operators. It always writes JSON lines.
func NewAuditLogger(w io.Writer, s settings.Settings) *slog.Logger {
	s.Log.Format, s.Log.Level = "json", settings.Level(slog.LevelInfo)
	return NewLogger(w, s)
}

func levelName(v slog.Value) string {
	switch level, _ := v.Any().(slog.Level); {
	case level == slog.LevelWarn:
		return "warning"
	case level < slog.LevelDebug:
		return "trace"
	default:
		return strings.ToLower(level.String())
	}
}
