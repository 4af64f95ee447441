package server

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
	attempts, failures := r.Counter(stats.CertsLoadAttempts), r.Counter(stats.CertsLoadFailures)
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
	r.Gauge(stats.CertsNumValues, func() float64 { return files })
	r.Gauge(stats.CertificateNotAfter, func() float64 { return float64(v.NotAfter().Unix()) })
	return v, nil
}

// serverTLS returns the TLS configuration of the gRPC listener; nil means plain text.
func (v *Server) serverTLS() *tls.Config {
	if v.certs == nil {
		return nil
	}
	return v.certs.TLS()
}

// handshakeFailed counts clients that could not connect. Anybody can cause a failure, so they are logged only if asked
// for.
func (v *Server) handshakeFailed() func(peer net.Addr, err error) {
	failed := v.registry.Counter(stats.TLSHandshakeErrorsTotal)
	return func(peer net.Addr, err error) {
		failed.Add(1)
		v.log.Debug("a TLS handshake failed", "peer", peer.String(), "error", err)
	}
}
