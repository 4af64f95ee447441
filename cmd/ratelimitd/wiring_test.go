package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

// sends connects, sends text and waits until the server closes the connection; without text the client closes it.
func (d *daemon) sends(listener, text string) {
	d.t.Helper()
	c, err := net.Dial("tcp", d.At[listener])
	testkit.Check(d.t, err)
	defer c.Close()
	if text == "" {
		return
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	_, err = c.Write([]byte(text))
	for b := make([]byte, 1024); err == nil; {
		_, err = c.Read(b)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		d.t.Errorf("%.20q: the server keeps the connection", text)
	}
}

// logs expects that the lines of the log that have the first part are one, and that it has the others.
func (d *daemon) logs(line string, parts ...string) {
	d.t.Helper()
	found := func() (all []string) {
		for l := range strings.Lines(d.Log.String()) {
			if strings.Contains(l, line) {
				all = append(all, l)
			}
		}
		return all
	}
	testkit.Eventually(d.t, "the log says: "+line, func() bool { return len(found()) > 0 }, d.Log.String)
	if n := len(found()); n != 1 {
		d.t.Errorf("%d lines with %q, want 1:\n%s", n, line, strings.Join(found(), ""))
	}
	for _, part := range parts {
		if !strings.Contains(found()[0], part) {
			d.t.Errorf("no %q in %s", part, found()[0])
		}
	}
}

const (
	http1Call = "POST /envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit HTTP/1.1\r\nHost: a\r\n\r\n"
	http2Call = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
)

// TestWrongWiring: what comes to the wrong port, or in the wrong way, is in the log once a minute, and says what would be right.
func TestWrongWiring(t *testing.T) {
	t.Parallel()
	d := startProcess(t, endlessRules)
	d.ready()
	d.sends("GRPC", "") // a probe
	for range 2 {
		d.sends("GRPC", http1Call)
		if _, err := tls.Dial("tcp", d.At["GRPC"], nil); err == nil {
			t.Error("there is TLS")
		}
		d.sends("HTTP", http2Call)
		d.command("call", "shopp", "user=ann")
	}
	d.command("call", "shop", "user=ann")
	d.logs("HTTP/1 arrived at the gRPC port", "lacks http2_protocol_options", "peer=127.0.0.1:", "level=warning")
	d.logs("TLS arrived at the gRPC port", "remove transport_socket")
	d.logs("arrived at the HTTP port", "(GRPC_PORT)")
	d.logs("asks for a domain without rules", "domain=shopp", `rules="no domain shopp; did you mean shop?"`)
	for range 20 {
		d.command("call", "shop", "use\x1b=ann")
	}
	d.logs("no rule has a key that a request sends", "level=info", "domain=shop", `key="\"use\\x1b\""`, `; did you mean user?`)
	if n := strings.Count(d.Log.String(), "level=warning"); n != 4 {
		t.Errorf("%d warnings, want 4:\n%s", n, &d.Log)
	}
}

// TestHandshakesInLog: clients without ALPN are served, and the log says why others are not.
func TestHandshakesInLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := certstest.NewCA(t, "servers")
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	ca.Issue(t, x509.Certificate{}).Write(t, cert, key)
	d := startProcess(t, endlessRules, "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+cert, "GRPC_SERVER_TLS_KEY="+key,
		"GRPC_SERVER_TLS_MIN_VERSION=1.3")
	config := func(most uint16, protocols ...string) *tls.Config {
		return &tls.Config{RootCAs: ca.Pool(), MaxVersion: most, NextProtos: protocols} //nolint:gosec // the server says which version
	}
	d.sends("GRPC", "") // a probe
	conn, err := grpc.NewClient(d.At["GRPC"], grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(_ context.Context, address string) (net.Conn, error) { return tls.Dial("tcp", address, config(0)) }))
	testkit.Check(t, err)
	defer conn.Close()
	for _, service := range []string{"", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"} {
		answer, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil || answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("the health of %q without ALPN: %v, %v", service, answer, err)
		}
	}
	if strings.Contains(d.Log.String(), "handshake") {
		t.Errorf("the log tells of handshakes that did not fail:\n%s", &d.Log)
	}
	for range 2 {
		for _, c := range []*tls.Config{config(tls.VersionTLS12), config(0, "http/1.1")} {
			if c, err := tls.Dial("tcp", d.At["GRPC"], c); err == nil {
				if _, err := c.Read(make([]byte, 1)); err == nil {
					t.Error("the handshake does not fail")
				}
				_ = c.Close()
			}
		}
		d.sends("GRPC", http1Call)
	}
	d.logs("offered only unsupported versions", "tls_maximum_protocol_version: TLSv1_3", "peer=127.0.0.1:", "level=warning")
	d.logs("by ALPN instead of h2", "http/1.1", "lacks http2_protocol_options")
	d.logs("does not look like a TLS handshake", "add a transport_socket")
	untrusting := &tls.Config{} //nolint:gosec // as above
	if _, err := tls.Dial("tcp", d.At["GRPC"], untrusting); err == nil {
		t.Error("the client trusts the server")
	}
	d.logs("remote error", "compare trusted_ca")

	tlsConn, err := tls.Dial("tcp", d.At["GRPC"], config(0))
	testkit.Check(t, err)
	defer tlsConn.Close()
	if _, err := tlsConn.Write([]byte(http1Call)); err != nil {
		t.Error(err)
	}
	d.logs("HTTP/1 arrived at the gRPC port", "lacks http2_protocol_options")
}
