package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
	"google.golang.org/protobuf/types/known/durationpb"
)

// wirings returns cases in which nothing is limited although Envoy and the server run. The server's log must explain
// the reason.
func wirings() []example {
	return []example{
		wiring("the cluster lacks HTTP/2", "HTTP/1 arrived at the gRPC port", nil, func(_ *world, c *config, _ *service) {
			c.service.TypedExtensionProtocolOptions = nil
		}),
		wiring("the cluster leads to the HTTP port", "HTTP/2, as in gRPC, arrived at the HTTP port", nil, func(_ *world, c *config, s *service) {
			placeAt(c.service, testkit.Addresses("\n" + s.Output())["HTTP"])
		}),
		wiring("the cluster has TLS, the server has none", "TLS arrived at the gRPC port", nil, func(w *world, c *config, _ *service) {
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
		{
			name: "examples/envoy-tls", play: certified,
			want: "limited, and healthy, with a certificate of the client; without one each call fails, and the log says why",
		},
		{
			name: "TLS 1.2, and a server 200 ms of round trip away", play: distant,
			want: "with a timeout of two round trips, calls that wait for a connection fail, and those on an open one do not; with a longer timeout none fails",
		},
		{name: "1,500 at once, the server stalled", want: "none passes beyond the limit", effort: most, play: atOnce},
	}
}

// withTLS are the variables of a server with a certificate, whose files are from [world.serveTLS].
var withTLS = []string{"GRPC_SERVER_USE_TLS=true"}

// wiring returns a case in which all requests pass.
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
		logged := func() bool { return strings.Contains(s.Output(), says) }
		testkit.Eventually(w, "the server logs "+says, logged, s.Output)
		w.got(strings.Count(s.Output(), says) == 1, "the server logs %d line", strings.Count(s.Output(), says))
	}}
}

// serveTLS starts a server with in-memory counters and 10 requests an hour for users, with a certificate if env
// requires TLS.
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

// overTLS makes the cluster of a configuration use TLS.
func (w *world) overTLS(c *config, how *tlsv3.UpstreamTlsContext) {
	w.Helper()
	c.service.TransportSocket = &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: w.pack(how)},
	}
}

// secured makes the cluster use TLS and the example's health checks.
func (w *world) secured(how *tlsv3.UpstreamTlsContext, env ...string) {
	up := w.upstream(hello)
	s := w.serveTLS(env...)
	p := w.proxy(setup{example: "envoy", timeout: patient, change: func(c *config) { w.overTLS(c, how) }}, up, s)
	y := w.send(p, same(12)...)
	w.got(y.passed == 10 && y.rejected == 2, "%d of 12 pass", y.passed)
	failures := p.count("cluster.ratelimitd.health_check.failure")
	w.got(failures == 0, "%d health checks fail", failures)
}

// certificates creates the certificates of examples/envoy-tls by its README, in a new directory.
func (w *world) certificates() (dir, readme string) {
	w.Helper()
	text, err := os.ReadFile("../../examples/envoy-tls/README.md")
	testkit.Check(w, err)
	cmd := exec.CommandContext(w.Context(), "bash", "-ec", testkit.Block(w, string(text), "openssl"))
	cmd.Dir = w.TempDir()
	if out, err := cmd.CombinedOutput(); err != nil {
		w.Fatalf("making certificates: %v\n%s", err, out)
	}
	return cmd.Dir, string(text)
}

// certified starts the server and Envoy by the README of examples/envoy-tls, and then an Envoy without a certificate.
func certified(w *world) {
	dir, readme := w.certificates()
	own, err := tls.LoadX509KeyPair(filepath.Join(dir, "certs/envoy.pem"), filepath.Join(dir, "certs/envoy-key.pem"))
	testkit.Check(w, err)
	w.identity = []tls.Certificate{own}
	var env []string
	here := strings.NewReplacer("certs/", dir+"/certs/", "../envoy", "../../examples/envoy")
	for name, value := range testkit.Variables(testkit.Block(w, readme, "GRPC_SERVER_USE_TLS")) {
		env = append(env, name+"="+here.Replace(value))
	}
	up, s := w.upstream(hello), w.start(env)
	how := setup{example: "envoy-tls", timeout: patient, dir: dir}
	p := w.proxy(how, up, s)
	y := w.send(p, same(45)...)
	w.got(y.passed >= 40 && y.rejected >= 1 && p.counts().failed == 0, "limited: %d × 429; no call fails", y.rejected)
	const checks = "cluster.ratelimitd.health_check."
	testkit.Eventually(w, "health checks go on", func() bool { return p.count(checks+"success") >= 2 })
	w.got(p.count(checks+"failure") == 0 && p.count("cluster.ratelimitd.lb_healthy_panic") == 0, "health checks succeed, none fails")
	_, command, _ := strings.Cut(testkit.Block(w, readme, "ratelimitd call"), "ratelimitd call ")
	args := append([]string{"call", "--addr", s.Addr()}, strings.Fields(here.Replace(command))...)
	out, _ := exec.CommandContext(w.Context(), w.program, args...).CombinedOutput() // fails, because the limit does not allow it
	said, _, _ := strings.Cut(string(out), "\n")
	w.got(said == "OVER_LIMIT" || said == "OK", "ratelimitd call is answered %s", said)

	how.change = func(c *config) {
		sent := new(tlsv3.UpstreamTlsContext)
		testkit.Check(w, c.service.GetTransportSocket().GetTypedConfig().UnmarshalTo(sent))
		sent.CommonTlsContext.TlsCertificates = nil
		w.overTLS(c, sent)
	}
	bare := w.front(how, up, s.Addr())
	n := up.all()
	y = w.send(bare, same(12)...)
	w.got(y.passed == 12 && up.all() == n+12 && bare.counts().failed == 12, "without a client's certificate %d of 12 calls fail, and requests pass", bare.counts().failed)
	const says = "to tls_certificates in the Envoy cluster"
	testkit.Eventually(w, "the server logs it", func() bool { return strings.Contains(s.Output(), says) }, s.Output)
	w.got(true, "the server logs: %s", says)
}

// distant has the server a tenth of a second away. It only checks certain bounds: the first call over TLS 1.2 takes six tenths while
// the filter waits for four, and a call on an open connection takes two.
func distant(w *world) {
	const away, timeout = 100 * time.Millisecond, 400 * time.Millisecond
	up, s := w.upstream(hello), w.serveTLS(withTLS...)
	far := testkit.NewProxy(w, s.Addr())
	far.Latency.Store(int64(away))
	run := func(timeout time.Duration) *proxy {
		return w.front(setup{example: "envoy", timeout: timeout, change: func(c *config) {
			c.service.HealthChecks, c.service.OutlierDetection, c.service.ConnectTimeout = nil, nil, durationpb.New(patient)
			w.overTLS(c, new(tlsv3.UpstreamTlsContext))
		}}, up, far.Addr())
	}
	p := run(timeout)
	w.ask(p, "/", "alice")
	w.got(p.counts() == counts{failed: 1, allowed: 1}, "with two round trips of timeout the first call fails: error %d", p.counts().failed)
	testkit.Eventually(w, "a call on the open connection is decided", func() bool { w.ask(p, "/", "alice"); return p.counts().ok > 0 })
	w.got(true, "once the connection is open, a call is decided")
	p = run(patient)
	w.ask(p, "/", "alice")
	w.got(p.counts() == counts{ok: 1}, "with a longer timeout the first is decided: ok %d", p.counts().ok)
}

// atOnce sends more concurrent requests than Envoy's default number of pending calls, while no answer comes.
func atOnce(w *world) {
	up := w.upstream(hello)
	s := w.serveTLS()
	p := w.proxy(setup{example: "envoy", timeout: patient, change: func(c *config) {
		c.service.HealthChecks = nil // it must hang without being removed
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
	w.got(y.rejected == n && up.all() == 10, "%d of %d are rejected, after %.1f s; %d reached the upstream, before", y.rejected, n, time.Since(begin).Seconds(), up.all())
}
