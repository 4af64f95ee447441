package server

import (
	"log/slog"

	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
)

// controlsConfig returns where controls are kept: where the counters are, if that is a place for more than those.
func (v *store) controlsConfig(s *settings.Settings, log *slog.Logger) controls.Config {
	c := controls.Config{Store: v.controls, Log: log}
	switch {
	case v.controls != nil:
	case s.Backend.Type == "redis":
		c.Alone = "REDIS_KEY_FORMAT=reference does not share controls"
	case s.Backend.Type == "memcache":
		c.Alone = "memcached does not share controls"
	default:
		c.Alone = countersAlone(s)
	}
	return c
}

// countersAlone returns why counters are those of this process alone; empty if replicas share them.
func countersAlone(s *settings.Settings) string {
	if s.Backend.Type == "redis" || s.Backend.Type == "memcache" {
		return ""
	}
	return "in-memory counters"
}
