package server

import (
	"errors"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/envoy/rls"
	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/internal/process/netlimit"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
)

// wiringEvery is the interval between log lines about the same misconfigured client. Envoy admits requests when it cannot reach
// the server, so a misconfiguration looks as if no limit were exceeded, and only the log shows it. Domains without rules are
// logged once each, up to 100.
const wiringEvery = time.Minute

// Advice for misconfigured clients of the gRPC port. Each is also a key of the log throttle.
const (
	wantHTTP2   = "the Envoy cluster lacks http2_protocol_options; HTTP probes belong on the HTTP port (PORT)"
	wantPlain   = "remove transport_socket from the Envoy cluster, or set GRPC_SERVER_USE_TLS=true"
	wantGRPC    = "point the Envoy cluster to the gRPC port (GRPC_PORT)"
	wantTLS     = "add a transport_socket with TLS to the Envoy cluster, or set GRPC_SERVER_USE_TLS=false"
	wantVersion = "Envoy offers servers at most TLS 1.2 by default: set tls_params: {tls_maximum_protocol_version: TLSv1_3} in the Envoy cluster, " +
		"or GRPC_SERVER_TLS_MIN_VERSION=1.2"
	wantCertificate = "add a client certificate, issued by a CA in GRPC_CLIENT_TLS_CACERT, to tls_certificates in the Envoy cluster"
	wantTrust       = "the client ended the handshake: compare trusted_ca and match_typed_subject_alt_names in the Envoy cluster with GRPC_SERVER_TLS_CERT"
	wantSettings    = "compare the Envoy cluster's transport_socket with GRPC_SERVER_TLS_* and GRPC_CLIENT_TLS_*"
)

// grpcBegan logs clients that speak a different protocol on the gRPC port.
func (v *Server) grpcBegan(peer net.Addr, p netlimit.Protocol) {
	switch p {
	case netlimit.HTTP1:
		v.miswired("HTTP/1 arrived at the gRPC port, which speaks HTTP/2", wantHTTP2, peer)
	case netlimit.TLS:
		v.miswired("TLS arrived at the gRPC port, which is plaintext", wantPlain, peer)
	case netlimit.HTTP2, netlimit.OtherProtocol:
	}
}

// httpBegan logs gRPC clients of the HTTP port.
func (v *Server) httpBegan(peer net.Addr, p netlimit.Protocol) {
	if p == netlimit.HTTP2 {
		v.miswired("HTTP/2, as in gRPC, arrived at the HTTP port, which speaks HTTP/1", wantGRPC, peer)
	}
}

// miswired logs a client's mistake and the fix.
func (v *Server) miswired(what, want string, peer net.Addr, facts ...any) {
	lines := v.miswirings.Through(v.log, what+want)
	lines.With("peer", peer.String(), "want", want).Warn(what, facts...) //nolint:sloglint // constant in each caller
}

// handshakeFailed returns a function that counts failed TLS handshakes on the gRPC port, and logs those of clients that sent
// data. A probe that only opens and closes a connection sends none.
func (v *Server) handshakeFailed() func(peer net.Addr, err error) {
	failed := v.registry.Counter(stats.TLSHandshakeErrorsTotal)
	return func(peer net.Addr, err error) {
		failed.Add(1)
		if errors.Is(err, grpcserver.ErrNothingSent) {
			v.log.Debug("a TLS handshake failed", "peer", peer.String(), "reason", err)
			return
		}
		v.miswired("a TLS handshake with the gRPC port failed", handshakeWant(err.Error(), &v.settings), peer, "reason", rls.Short(err.Error()))
	}
}

// handshakeWant returns advice for a failed handshake, by its crypto/tls error text.
func handshakeWant(reason string, s *settings.Settings) string {
	has := func(part string) bool { return strings.Contains(reason, part) }
	switch {
	case has("first record does not look like a TLS handshake"):
		return wantTLS
	case has("unsupported versions") && s.GRPC.MinTLS == "1.3":
		return wantVersion
	case has("didn't provide a certificate"):
		return wantCertificate
	case has("remote error"):
		return wantTrust
	case has("ALPN"):
		return wantHTTP2
	default:
		return wantSettings
	}
}

// unknownDomain logs the first request for a domain without rules. The limiter reports at most 100 such domains.
func (v *Server) unknownDomain(name string) {
	v.log.Warn("a request asks for a domain without rules, so no limit applies: compare domain in Envoy's filter with the rules",
		slog.String("domain", rls.Short(name)), slog.String("rules", v.limiter.Rules().Unknown(name)))
}

// missingKey logs a key of a request that no rule has.
func (v *Server) missingKey(domain, key, why string) {
	v.log.Info("no rule has a key that a request sends: compare Envoy's rate_limits with the rules",
		slog.String("domain", rls.Short(domain)), slog.String("key", plain.Quoted([]byte(plain.Shorten(key)))), slog.String("why", why))
}
