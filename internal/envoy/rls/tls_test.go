package rls

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"sync"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

// serverTLS returns a TLS configuration for 127.0.0.1, and the pool of its CA.
func serverTLS(t *testing.T) (*tls.Config, *x509.CertPool) {
	t.Helper()
	ca := certstest.NewCA(t, "ca")
	pair := ca.Issue(t, x509.Certificate{})
	return &tls.Config{Certificates: []tls.Certificate{pair.TLS(t)}, MinVersion: tls.VersionTLS12}, ca.Pool()
}

// TestHandshakesThatFail checks that a failed handshake is reported with the client's address and does not affect other clients.
func TestHandshakesThatFail(t *testing.T) {
	config, pool := serverTLS(t)
	var mu sync.Mutex
	var told []string
	server := newServer(New(decideFunc(allow), Config{}), grpcserver.Config{TLS: config, Handshake: func(peer net.Addr, err error) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, peer.String()+": "+err.Error())
	}})
	address := serve(t, server)
	good := ratelimitv3.NewRateLimitServiceClient(dial(t, address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool})))) //nolint:gosec // the server determines the version
	if _, err := good.ShouldRateLimit(t.Context(), request("d", "k=v")); err != nil {
		t.Fatal(err)
	}
	_, err := ratelimitv3.NewRateLimitServiceClient(dial(t, address)).ShouldRateLimit(t.Context(), request("d", "k=v"))
	wantCode(t, err, codes.Unavailable)
	if _, err := good.ShouldRateLimit(t.Context(), request("d", "k=v")); err != nil {
		t.Error(err)
	}
	server.Stop() // no handshake is in progress afterwards
	mu.Lock()
	defer mu.Unlock()
	if len(told) == 0 || !strings.HasPrefix(told[0], "127.0.0.1:") || !strings.Contains(told[0], "TLS handshake") {
		t.Errorf("told %q", told)
	}
}
