package examples_test

import (
	"crypto/tls"
	"crypto/x509"
	"maps"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/credentials"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// startTLS makes certificates, and starts the server, as the README of envoy-tls does.
func startTLS(t *testing.T, more map[string]string) *server {
	t.Helper()
	testkit.NotShort(t)
	readme, dir := read(t, "envoy-tls/README.md"), t.TempDir()
	cmd := exec.CommandContext(t.Context(), "bash", "-ec", testkit.Block(t, readme, "openssl"))
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("making certificates: %v\n%s", err, out)
	}
	env := testkit.Variables(testkit.Block(t, readme, "GRPC_SERVER_USE_TLS"))
	for name, value := range env {
		if strings.HasPrefix(value, "certs/") {
			env[name] = filepath.Join(dir, value)
		}
	}
	env["RUNTIME_ROOT"] = filepath.Join("envoy-tls", env["RUNTIME_ROOT"])
	maps.Copy(env, more)
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "certs/envoy.pem"), filepath.Join(dir, "certs/envoy-key.pem"))
	testkit.Check(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(read(t, filepath.Join(dir, "certs/ca.pem"))))
	return startSecured(t, "ratelimitd", env, credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "ratelimitd", MinVersion: tls.VersionTLS12,
	}))
}

func TestEnvoyTLS(t *testing.T) {
	t.Parallel()
	startTLS(t, nil).expect(t, "edge", "user", "ann", &rlsv3.RateLimitResponse_RateLimit{RequestsPerUnit: 20, Unit: rlsv3.RateLimitResponse_RateLimit_MINUTE})
}
