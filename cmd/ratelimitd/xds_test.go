package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

// gateway is a control plane like Envoy Gateway's: go-control-plane's cache and server over TLS, a node ID, and versions
// that count from 1.
type gateway struct {
	t       *testing.T
	cache   cachev3.SnapshotCache
	server  *grpc.Server
	address string
	dir     string // directory of certificates, as mounted by Envoy Gateway
	version int
	seen    seen
	end     func()
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	g := &gateway{t: t, dir: t.TempDir(), cache: cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil)}
	ca := certstest.NewCA(t, "envoy-gateway")
	certstest.Write(t, filepath.Join(g.dir, "ca.crt"), ca.PEM)
	ca.Issue(t, x509.Certificate{}).Write(t, filepath.Join(g.dir, "tls.crt"), filepath.Join(g.dir, "tls.key"))
	g.server = grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{ca.Issue(t, x509.Certificate{}).TLS(t)}, MinVersion: tls.VersionTLS13,
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
	})))
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g.server, serverv3.NewServer(ctx, g.cache, serverv3.CallbackFuncs{
		StreamOpenFunc:    func(ctx context.Context, _ int64, _ string) error { g.seen.open(ctx); return nil },
		StreamRequestFunc: func(_ int64, r *discoveryv3.DiscoveryRequest) error { g.seen.request(r); return nil },
	}))
	l := testkit.Listen(t)
	g.address = l.Addr().String()
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.server.Serve(l) }) // ends with the server
	g.end = func() {
		stop()
		g.server.Stop()
		serving.Wait()
	}
	t.Cleanup(g.end)
	return g
}

// env returns the variables that Envoy Gateway sets, except for ports and Redis.
func (g *gateway) env(more ...string) []string {
	file := func(name string) string { return filepath.Join(g.dir, name) }
	return append([]string{
		"BACKEND_TYPE=memory", "RUNTIME_ROOT=/data", "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_IGNOREDOTFILES=true", "RUNTIME_WATCH_ROOT=false",
		"LOG_LEVEL=info", "USE_STATSD=false", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=" + g.address,
		"CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit", "GRPC_SERVER_TLS_CA_CERT=" + file("ca.crt"), "CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
		"CONFIG_GRPC_XDS_CLIENT_TLS_CERT=" + file("tls.crt"), "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=" + file("tls.key"),
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=" + file("ca.crt"), "FORCE_START_WITHOUT_INITIAL_CONFIG=true",
	}, more...)
}

func (g *gateway) send(resources ...types.Resource) {
	g.t.Helper()
	g.version++
	s, err := cachev3.NewSnapshot(fmt.Sprint(g.version), map[resourcev3.Type][]types.Resource{resourcev3.RateLimitConfigType: resources})
	if err == nil {
		err = g.cache.SetSnapshot(g.t.Context(), "envoy-ratelimit", s)
	}
	if err != nil {
		g.t.Error(err) // may run outside the test's goroutine
	}
}

// year is a unit without a name in the linked messages. Days might end while a test runs.
const year = ratelimitv3.RateLimitUnit(6)

// policy returns a limit for a key of a domain.
func policy(domain, key string, limit uint32) *ratelimitv3.RateLimitConfig {
	return &ratelimitv3.RateLimitConfig{Name: domain, Domain: domain, Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Key: key, RateLimit: &ratelimitv3.RateLimitPolicy{Unit: year, RequestsPerUnit: limit},
	}}}
}

// waits waits until a page of d has a text.
func (d *daemon) waits(listener, path, text string) {
	d.t.Helper()
	var body string
	testkit.Eventually(d.t, fmt.Sprintf("%s has %q", path, text), func() bool {
		body, _ = d.get(listener, path)
		return strings.Contains(body, text)
	}, func() string { return body }, d.Log.String)
}

func TestXDSAsEnvoyGatewayRunsIt(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"GRPC_XDS_SOTW", "GRPC_XDS_DELTA"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t)
			d := startProcess(t, "", g.env("CONFIG_TYPE="+way)...)
			client := d.client()
			ask := func() (rlsv3.RateLimitResponse_Code, error) {
				r, err := client.ShouldRateLimit(t.Context(), request("user", "a"))
				return r.GetOverallCode(), err
			}
			wants := func(want rlsv3.RateLimitResponse_Code) {
				t.Helper()
				if got, err := ask(); err != nil || got != want {
					t.Errorf("%v, %v; want %v", got, err, want)
				}
			}

			if _, err := ask(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no rate limit configuration loaded") {
				t.Errorf("without rules: %v", err)
			}
			if _, code := d.get("HTTP", "/healthcheck"); code != http.StatusOK { // FORCE_START_WITHOUT_INITIAL_CONFIG
				t.Errorf("healthcheck %d without rules", code)
			}
			d.waits("HTTP", "/readyz", `rules: the control plane at `+g.address+` has sent nothing for node "envoy-ratelimit"`)
			if age := d.metric("ratelimitd_config_age_seconds"); age <= 0 {
				t.Errorf("config_age_seconds is %v before any rules", age)
			}

			g.send(policy("shop", "user", 2))
			d.ready()
			wants(rlsv3.RateLimitResponse_OK)
			wants(rlsv3.RateLimitResponse_OK)
			wants(rlsv3.RateLimitResponse_OVER_LIMIT)
			d.waits("DEBUG", "/metrics", "ratelimitd_config_age_seconds 0\n")
			d.waits("DEBUG", "/metrics", "ratelimitd_xds_connected 1\n")

			g.send(policy("", "user", 9)) // invalid
			d.waits("DEBUG", "/metrics", "ratelimit_service_config_load_error 1\n")
			d.waits("DEBUG", "/metrics", `ratelimitd_xds_events_total{event="invalid"}`)
			wants(rlsv3.RateLimitResponse_OVER_LIMIT)
			g.send(policy("shop", "user", 5), policy("mail", "box", 1)) // the counter stays
			d.waits("DEBUG", "/rlconfig", "requests_per_unit=5")
			wants(rlsv3.RateLimitResponse_OK)

			g.send() // removes the last policy
			d.waits("DEBUG", "/metrics", `ratelimitd_xds_events_total{event="empty"} 1`)
			d.waits("DEBUG", "/metrics", "runtime_num_values 0\n") // eventually
			wants(rlsv3.RateLimitResponse_OK)
			g.send(policy("shop", "user", 0))
			d.waits("DEBUG", "/rlconfig", "requests_per_unit=0")

			g.end()
			d.waits("DEBUG", "/metrics", "ratelimitd_xds_connected 0\n")
			wants(rlsv3.RateLimitResponse_OVER_LIMIT)
			before := d.metric("ratelimitd_config_age_seconds")
			d.until("the rules age", func() bool { return d.metric("ratelimitd_config_age_seconds") > before })
			if _, code := d.get("HTTP", "/readyz"); code != http.StatusOK {
				t.Errorf("readyz %d without control plane", code)
			}
			d.stop()
		})
	}
}

func TestXDSHealthyWithAtLeastOneConfig(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	d := startProcess(t, "", g.env("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true")...)
	healthy := func(want int) { // soon after the rules arrive
		t.Helper()
		d.until(fmt.Sprintf("/healthcheck answers %d", want), func() bool { _, code := d.get("HTTP", "/healthcheck"); return code == want })
	}
	healthy(http.StatusInternalServerError)
	g.send()
	d.ready() // ready, without limits
	healthy(http.StatusInternalServerError)
	g.send(policy("shop", "user", 1))
	d.waits("DEBUG", "/rlconfig", "requests_per_unit=1")
	healthy(http.StatusOK)
	g.send()
	d.waits("DEBUG", "/metrics", `ratelimitd_xds_events_total{event="empty"} 2`)
	healthy(http.StatusInternalServerError)
}

func TestXDSSIGTERMWhileWaiting(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	for name, env := range map[string][]string{
		"for rules":           g.env(),
		"for a control plane": g.env("CONFIG_GRPC_XDS_SERVER_URL=127.0.0.1:1"),
		"for certificates":    g.env("CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/nowhere"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startProcess(t, "", env...)
			begin := time.Now()
			d.stop() // also checks for exit code 0
			if took := time.Since(begin); took > 20*time.Second {
				t.Errorf("it took %v, want 2s", took)
			}
		})
	}
}
