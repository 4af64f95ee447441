package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/certs"
	"github.com/ratelimitd/ratelimitd/internal/settings"
	"github.com/ratelimitd/ratelimitd/internal/stats"
)

// newCerts reads the certificates of the gRPC listener, and counts their reloads. It returns nil without TLS.
func newCerts(s *settings.Settings, log *slog.Logger, r *stats.Registry) (*certs.Server, error) {
	if !s.GRPC.UseTLS {
		return nil, nil //nolint:nilnil // plain text
	}
	attempts, failures := r.Counter("certs.load_attempts"), r.Counter("certs.load_failures")
	c := certs.Config{
		Cert:     s.GRPC.Cert,
		Key:      s.GRPC.Key,
		ClientCA: s.GRPC.ClientCA,
		Tried: func(err error) {
			attempts.Add(1)
			if err != nil {
				failures.Add(1)
			}
		},
	}
	for _, name := range s.GRPC.ClientSANs {
		c.ClientNames = append(c.ClientNames, strings.TrimSpace(name))
	}
	if s.GRPC.MinTLS == "1.3" {
		c.MinVersion = tls.VersionTLS13
	}
	v, err := certs.New(log, c)
	if err != nil {
		return nil, fmt.Errorf("%w (GRPC_SERVER_TLS_CERT, GRPC_SERVER_TLS_KEY, GRPC_CLIENT_TLS_CACERT)", err)
	}
	files := 2.
	if c.ClientCA != "" {
		files++
	}
	r.Gauge("certs.num_values", func() float64 { return files })
	r.Gauge("ratelimitd.certificate_not_after_timestamp_seconds", func() float64 { return float64(v.NotAfter().Unix()) })
	return v, nil
}

// serverTLS returns the TLS configuration of the gRPC listener; nil means plain text.
func (v *server) serverTLS() *tls.Config {
	if v.certs == nil {
		return nil
	}
	return v.certs.TLS()
}

// handshakeFailed counts clients that could not connect. Anybody can cause a failure, so they are logged only if asked
// for.
func (v *server) handshakeFailed() func(peer net.Addr, err error) {
	failed := v.registry.Counter("ratelimitd.tls_handshake_errors_total")
	return func(peer net.Addr, err error) {
		failed.Add(1)
		v.log.Debug("a TLS handshake failed", "peer", peer.String(), "error", err)
	}
}
