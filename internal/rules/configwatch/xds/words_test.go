package xds_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch/xds"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestWords connects to servers that are not control planes. The log explains the problem without a library's terms.
func TestWords(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	modern := httptest.NewUnstartedServer(http.NotFoundHandler())
	modern.EnableHTTP2 = true
	modern.StartTLS()
	t.Cleanup(modern.Close)
	addr := func(s *httptest.Server) string { return s.Listener.Addr().String() }
	closing, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = closing.Close() })
	go func() {
		for c, err := closing.Accept(); err == nil; c, err = closing.Accept() {
			_ = c.Close()
		}
	}()
	plane := newPlane(t)
	for _, c := range []struct {
		name, server string
		tls          bool
		want         string
	}{
		{"nobody", "127.0.0.1:1", false, "connection refused"},
		{"no socket", "unix:nowhere.sock", false, "no such file or directory"},
		{"no port", "127.0.0.1:99999", false, "invalid port"},
		{"HTTP", addr(web), false, "the server there is not a gRPC server, or requires TLS (CONFIG_GRPC_XDS_SERVER_USE_TLS=true)"},
		{"TLS to plaintext HTTP", addr(web), true, "TLS is turned on, but the server there does not speak it"},
		{"TLS to plaintext", plane.address, true, "TLS is turned on, but the server there does not speak it"},
		{"plaintext to TLS", addr(secure), false, "the server there is not a gRPC server, or requires TLS (CONFIG_GRPC_XDS_SERVER_USE_TLS=true)"},
		{"TLS without HTTP/2", addr(secure), true, "the server ended the TLS handshake: no application protocol"},
		{"a CA that is not trusted", addr(modern), true, "the server's certificate is not accepted: certificate signed by unknown authority"},
		{"hangs up on TLS", closing.Addr().String(), true, "the server closed the connection during the TLS handshake: does it speak TLS?"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := follow(t, xds.Config{Server: c.server, TLS: xds.TLS{On: c.tls}, Backoff: xds.Backoff{First: time.Hour, Initial: time.Hour, Max: time.Hour, NoJitter: true}})
			testkit.Eventually(t, "it is in the log", func() bool { return strings.Contains(f.log.String(), "no control plane") })
			if log := f.log.String(); !strings.Contains(log, fmt.Sprintf("error=%q", c.want)) {
				t.Errorf("want %s, got\n%s", c.want, log)
			}
		})
	}
}

// TestWordsOfGRPC has grpc's texts for network errors that tests cannot produce.
func TestWordsOfGRPC(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"name resolver error: produced zero addresses", "the host does not exist, or has no address"},
		{`connection error: desc = "transport: Error while dialing: dial tcp 10.0.0.1:1: i/o timeout"`, "no answer in time"},
		{`connection error: desc = "transport: authentication handshake failed: context deadline exceeded"`, "the TLS handshake got no answer in time: does the server there speak TLS?"},
		{`closing transport due to: connection error: desc = "error reading from server: EOF", received prior goaway: code: NO_ERROR`, "the server closed the connection"},
		{"write tcp 127.0.0.1:33292->127.0.0.1:43029: write: broken pipe", "the server closed the connection"},
		{
			`connection error: desc = "error reading server preface: connection reset by peer"`,
			"the server there is not a gRPC server, or requires TLS (CONFIG_GRPC_XDS_SERVER_USE_TLS=true)",
		},
		{`connection error: desc = "transport: something \"else\""`, `something "else"`},
		{"unknown service envoy.service.discovery.v3.AggregatedDiscoveryService", "unknown service envoy.service.discovery.v3.AggregatedDiscoveryService"},
	} {
		if got := xds.Words(status.Error(codes.Unavailable, c.text)); got != c.want {
			t.Errorf("%s: %s, want %s", c.text, got, c.want)
		}
	}
}
