package e2e

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/ratelimitd/ratelimitd/internal/certs/certstest"
	"github.com/ratelimitd/ratelimitd/internal/envoytest"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"google.golang.org/protobuf/types/known/anypb"
)

// wirings are those in which nothing is limited, though Envoy and the server run. The server's log has to say why.
func wirings() []example {
	return []example{
		wiring("the cluster lacks HTTP/2", "HTTP/1 came to the gRPC port", nil, func(_ *world, c *config, _ *service) {
			c.service.TypedExtensionProtocolOptions = nil
		}),
		wiring("the cluster leads to the HTTP port", "HTTP/2, as of gRPC, came to the HTTP port", nil, func(_ *world, c *config, s *service) {
			placeAt(c.service, testkit.Addresses("\n" + s.Said())["HTTP"])
		}),
		wiring("the cluster has TLS, the server has none", "TLS came to the gRPC port", nil, func(w *world, c *config, _ *service) {
			w.overTLS(c, new(tlsv3.UpstreamTlsContext))
		}),
		wiring("the server has TLS, the cluster has none", "a TLS handshake with the gRPC port failed", withTLS, func(*world, *config, *service) {}),
		wiring("the server wants TLS 1.3, the cluster has Envoy's default", "tls_maximum_protocol_version", append(withTLS, "GRPC_SERVER_TLS_MIN_VERSION=1.3"),
			func(w *world, c *config, _ *service) { w.overTLS(c, new(tlsv3.UpstreamTlsContext)) }),
		wiring("the domain has no rules", "a request asks for a domain without rules", nil, func(_ *world, c *config, _ *service) {
			c.filter.Domain = "egde"
		}),
		{name: "TLS, with a health check without ALPN", want: "limited, and healthy", play: func(w *world) { w.secured(new(tlsv3.UpstreamTlsContext), withTLS...) }},
		{name: "TLS 1.3", want: "limited, and healthy", play: func(w *world) {
			w.secured(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
				TlsParams: &tlsv3.TlsParameters{TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3},
			}}, append(withTLS, "GRPC_SERVER_TLS_MIN_VERSION=1.3")...)
		}},
		{name: "descriptors", want: "1,024 are decided; with 1,025 each request passes, and the log says why", play: manyDescriptors},
		{name: "1,500 at once, the server stalled", want: "none passes beyond the limit", effort: most, play: atOnce},
	}
}

// withTLS are variables of a server with a certificate. Its files are those of [world.serveTLS].
var withTLS = []string{"GRPC_SERVER_USE_TLS=true"}

// wiring is a case in which all requests pass.
func wiring(name, says string, env []string, wire func(*world, *config, *service)) example {
	return example{name: name, want: "all pass, and the server logs: " + says, play: func(w *world) {
		up := w.upstream(hello)
		s := w.serveTLS(env...)
		p := w.front(setup{example: "envoy", timeout: patient, change: func(c *config) {
			c.service.HealthChecks, c.service.OutlierDetection = nil, nil
			wire(w, c, s)
		}}, up, s.Addr())
		const n = 12
		y := w.send(p, same(n)...)
		w.got(y.passed == n, "%d of %d pass, where the limit is 10", y.passed, n)
		logged := func() bool { return strings.Contains(s.Said(), says) }
		testkit.Eventually(w, "the server logs "+says, logged, s.Said)
		w.got(strings.Count(s.Said(), says) == 1, "the server logs %d line", strings.Count(s.Said(), says))
	}}
}

// serveTLS starts a server in memory, where users have 10 requests an hour, with a certificate if env asks for TLS.
func (w *world) serveTLS(env ...string) *service {
	w.Helper()
	all := append([]string{"BACKEND_TYPE=memory"}, env...)
	if slices.Contains(env, withTLS[0]) {
		dir := w.TempDir()
		cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
		certstest.NewCA(w.T, "ca").Issue(w.T, x509.Certificate{DNSNames: []string{"ratelimitd"}}).Write(w.T, cert, key)
		all = append(all, "GRPC_SERVER_TLS_CERT="+cert, "GRPC_SERVER_TLS_KEY="+key)
	}
	return w.serve(perUser("error"), all...)
}

// overTLS has the cluster of a configuration use TLS.
func (w *world) overTLS(c *config, how *tlsv3.UpstreamTlsContext) {
	w.Helper()
	c.service.TransportSocket = &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: w.pack(how)},
	}
}

// secured has the cluster use TLS and the example's health checks.
func (w *world) secured(how *tlsv3.UpstreamTlsContext, env ...string) {
	up := w.upstream(hello)
	s := w.serveTLS(env...)
	p := w.proxy(setup{example: "envoy", timeout: patient, change: func(c *config) { w.overTLS(c, how) }}, up, s)
	y := w.send(p, same(12)...)
	w.got(y.passed == 10 && y.refused == 2, "%d of 12 pass", y.passed)
	failures := p.count("cluster.ratelimitd.health_check.failure")
	w.got(failures == 0, "%d health checks fail", failures)
}

// limits replaces what the example asks for each request.
func (c *config) limits(w *world, limits []*routev3.RateLimit) {
	w.Helper()
	packed, err := anypb.New(&ratelimitv3.RateLimitPerRoute{RateLimits: limits})
	if err != nil {
		w.Fatal(err)
	}
	for _, r := range c.manager.GetRouteConfig().GetVirtualHosts()[0].GetRoutes() {
		r.TypedPerFilterConfig = map[string]*anypb.Any{envoytest.FilterName: packed}
	}
}

// manyDescriptors sends as many descriptors as the server decides, and one more.
func manyDescriptors(w *world) {
	up := w.upstream(hello)
	s := w.serveTLS()
	for _, n := range []int{1024, 1025} {
		var limits []*routev3.RateLimit
		for range n {
			limits = append(limits, &routev3.RateLimit{Actions: []*routev3.RateLimit_Action{{ActionSpecifier: &routev3.RateLimit_Action_RequestHeaders_{
				RequestHeaders: &routev3.RateLimit_Action_RequestHeaders{HeaderName: "x-user", DescriptorKey: "user"},
			}}}})
		}
		p := w.proxy(setup{example: "envoy", timeout: patient, change: func(c *config) { c.limits(w, limits) }}, up, s)
		y := w.send(p, same(3)...)
		if n == 1024 {
			w.got(y.refused == 3, "with %d, %d of 3 are refused", n, y.refused)
			continue
		}
		w.got(y.passed == 3, "with %d, %d of 3 pass", n, y.passed)
		w.got(strings.Count(s.Said(), "too many descriptors") == 1, "the server logs %d line", strings.Count(s.Said(), "too many descriptors"))
	}
}

// atOnce has more requests come than Envoy asks about at a time by default, while no answer comes.
func atOnce(w *world) {
	up := w.upstream(hello)
	s := w.serveTLS()
	p := w.proxy(setup{example: "envoy", timeout: patient, change: func(c *config) {
		c.service.HealthChecks = nil // it is to hang, not to be taken out
	}}, up, s)
	w.send(p, same(12)...)
	s.hang(w)
	const n = 1500
	var done sync.WaitGroup
	y := new(tally)
	client := http.Client{Transport: &http.Transport{}, Timeout: testkit.Patience}
	for range n {
		done.Go(func() {
			req, err := http.NewRequestWithContext(w.Context(), http.MethodGet, p.base()+"/", http.NoBody)
			if err != nil {
				w.Error(err)
				return
			}
			req.Header.Set("x-user", "alice")
			resp, err := client.Do(req)
			if err != nil {
				w.Error(err)
				return
			}
			defer resp.Body.Close()
			_, _ = drain(resp.Body)
			y.add("alice", answer{status: resp.StatusCode})
		})
	}
	asked := func() bool { return p.count("cluster.ratelimitd.upstream_rq_active") >= n }
	begin := time.Now()
	testkit.Eventually(w, fmt.Sprintf("Envoy asks about all %d", n), asked)
	s.Cont()
	done.Wait()
	w.got(y.refused == n && up.all() == 10, "%d of %d are refused, after %.1f s; %d reached the upstream, before", y.refused, n, time.Since(begin).Seconds(), up.all())
}
