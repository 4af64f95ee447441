package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"github.com/ratelimitd/ratelimitd/internal/process/netlimit"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
)

// listeners holds the open ports of the server.
type listeners struct {
	grpc, http, debug net.Listener
	prometheus        net.Listener // nil if disabled
	admin             net.Listener // the admin socket; nil if disabled or unavailable
}

// listen opens all ports. If any fails, it closes the others and returns one error line per failure.
func listen(ctx context.Context, s *settings.Settings) (listeners, error) {
	var l listeners
	var errs []error
	opened := func(ln net.Listener, err error) net.Listener {
		if err != nil {
			errs = append(errs, err)
			return nil
		}
		return ln
	}
	if s.GRPC.UDS == "" {
		l.grpc = opened(listenTCP(ctx, net.JoinHostPort(s.GRPC.Host, s.GRPC.Port), "GRPC_PORT"))
	} else if ln, err := netlimit.ListenUnix(ctx, s.GRPC.UDS, netlimit.GroupMode); err != nil {
		errs = append(errs, fmt.Errorf("%w (set by GRPC_UDS)", err))
	} else {
		l.grpc = ln
	}
	l.http = opened(listenTCP(ctx, net.JoinHostPort(s.HTTP.Host, s.HTTP.Port), "PORT"))
	l.debug = opened(listenTCP(ctx, net.JoinHostPort(s.Debug.Host, s.Debug.Port), "DEBUG_PORT"))
	if s.Stats.Prometheus && !s.Stats.Disable {
		l.prometheus = opened(listenTCP(ctx, s.Stats.PrometheusAddr, "PROMETHEUS_ADDR"))
	}
	if errs == nil {
		return l, nil
	}
	for _, ln := range []net.Listener{l.grpc, l.http, l.debug, l.prometheus} {
		if ln != nil {
			errs = append(errs, ln.Close())
		}
	}
	return listeners{}, errors.Join(errs...)
}

// listenTCP listens on an address whose port is set by the named variable.
func listenTCP(ctx context.Context, address, variable string) (net.Listener, error) {
	ln, err := netlimit.ListenTCP(ctx, address)
	switch {
	case err == nil:
		return ln, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listening on %s: address already in use: set %s to another port", address, variable)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listening on %s: not permitted: set %s to a port above 1023", address, variable)
	default:
		says := variable + " says"
		if prefix, ok := strings.CutSuffix(variable, "PORT"); ok {
			says = prefix + "HOST and " + variable + " say"
		}
		return nil, fmt.Errorf("listening on %s, as %s: %w", address, says, err)
	}
}
