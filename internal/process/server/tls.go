package server

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/process/certs"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/process/web"
)

// newCerts reads the certificates of the gRPC and debug listeners, and counts reloads. It returns nil without TLS.
func newCerts(s *settings.Settings, log *slog.Logger, r *stats.Registry) (*certs.Server, error) {
	if !s.GRPC.UseTLS && !s.Debug.TLS {
		return nil, nil //nolint:nilnil // without TLS
	}
	attempts, failures := r.Counter(stats.CertsLoadAttempts), r.Counter(stats.CertsLoadFailures)
	c := certs.Config{
		Cert:        s.GRPC.Cert,
		Key:         s.GRPC.Key,
		ClientCA:    s.GRPC.ClientCA,
		ClientNames: s.GRPC.ClientSANs,
		Tried: func(err error) {
			attempts.Add(1)
			if err != nil {
				failures.Add(1)
			}
		},
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

// serverTLS returns the TLS configuration of the gRPC listener; nil without TLS.
func (v *Server) serverTLS() *tls.Config {
	if !v.settings.GRPC.UseTLS {
		return nil
	}
	return v.certs.TLS()
}

// debugServer returns the server of the debug listener, with TLS if DEBUG_TLS is true.
func (v *Server) debugServer() *web.Server {
	s := web.NewServer("debug", v.listeners.debug, web.DebugHandler(v.debugPages()), v.log, web.Limits{Write: 90 * time.Second})
	if !v.settings.Debug.TLS {
		return s
	}
	failed := v.registry.Counter(stats.TLSHandshakeErrorsTotal)
	return s.Secure(v.certs.WebTLS(), func(about string) {
		failed.Add(1)
		v.log.Debug("a TLS handshake with the debug port failed", "client", about)
	})
}
