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

// LongestProfile returns how long a profile runs at most, and how long if seconds is the parameter of a request.
func LongestProfile(seconds string) (time.Duration, error) {
	return (&profiler{longest: longestProfile}).duration(seconds, time.Second)
}
