package web

import (
	"net/http"
	"time"
)

// LimitsOf returns the limits that s uses.
func LimitsOf(s *Server) Limits {
	return Limits{s.http.ReadHeaderTimeout, s.http.ReadTimeout, s.http.WriteTimeout, s.http.IdleTimeout, s.grace}
}

// DebugHandlerWith is DebugHandler with profiles of at most longest.
func DebugHandlerWith(d Debug, longest time.Duration) http.Handler { return debugHandler(d, longest) }

// ProfileSeconds returns the seconds that the handler of a profile gets for a request.
func ProfileSeconds(name, asked string) (string, error) {
	return (&profiler{longest: longestProfile}).seconds(name, asked)
}
