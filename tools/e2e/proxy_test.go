package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	"github.com/ratelimitd/ratelimitd/internal/envoytest"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// proxy is an Envoy, or what plays one.
type proxy interface {
	base() string
	stats() envoytest.Stats // of the rate-limit filter
	log() string            // of requests
	trouble() []string      // how calls ended that got no answer, as far as the proxy tells
}

// callers is the client of all who call a proxy.
var callers = http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}

func drain(r io.Reader) (int64, error) { return io.Copy(io.Discard, r) }

// setup is an example's envoy.yaml, with what is changed in it.
type setup struct {
	example string
	deny    bool          // failure_mode_deny
	timeout time.Duration // 0 is that of the example
}

// patient is a timeout that a decision does not reach, on a machine that may be busy.
const patient = 20 * time.Second

// proxy starts a proxy before an application, which asks the services.
func (w *world) proxy(how setup, up *upstream, services ...*service) proxy { //nolint:ireturn // one of two
	w.Helper()
	b := w.bootstrap(how, up, services)
	p := w.front(b, len(services))
	w.proxies = append(w.proxies, p)
	return p
}

// front starts a proxy with a configuration.
func (w *world) front(b *bootstrapv3.Bootstrap, services int) proxy { //nolint:ireturn // of two kinds
	w.Helper()
	if *envoy != "" {
		return w.envoy(b, services)
	}
	p, err := envoytest.NewProxy(b, "edge")
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.Context(), testkit.Patience)
	defer cancel()
	if err := p.Ready(ctx); err != nil {
		w.Fatal(err)
	}
	front := httptest.NewServer(p)
	w.Cleanup(func() {
		callers.CloseIdleConnections()
		front.Close()
		if err := p.Close(); err != nil {
			w.Error(err)
		}
	})
	return played{p, front.URL}
}

// bootstrap returns the configuration of the example, with its listener on loopback and its clusters where they are here.
func (w *world) bootstrap(how setup, up *upstream, services []*service) *bootstrapv3.Bootstrap {
	w.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "examples", how.example, "envoy.yaml"))
	if err != nil {
		w.Fatal(err)
	}
	b := new(bootstrapv3.Bootstrap)
	if err := envoytest.Decode(string(text), b); err != nil {
		w.Fatal(err)
	}
	b.Admin.Address = address("127.0.0.1:0")
	var edge []*listenerv3.Listener
	for _, l := range b.GetStaticResources().GetListeners() {
		if l.GetName() == "edge" { // the other stands for the application, which is real here
			l.Address = address("127.0.0.1:0")
			edge = append(edge, l)
		}
	}
	b.StaticResources.Listeners = edge
	for _, c := range b.GetStaticResources().GetClusters() {
		at := []string{strings.TrimPrefix(up.URL, "http://")}
		if c.GetName() == "ratelimitd" {
			at = nil
			for _, s := range services {
				at = append(at, s.Addr())
			}
		}
		all := c.GetLoadAssignment().GetEndpoints()[0]
		all.LbEndpoints = nil
		for _, addr := range at {
			all.LbEndpoints = append(all.LbEndpoints, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
				Endpoint: &endpointv3.Endpoint{Address: address(addr)},
			}})
		}
	}
	w.change(b, func(f *ratelimitv3.RateLimit) {
		f.FailureModeDeny = how.deny
		if how.timeout > 0 {
			f.Timeout = durationpb.New(how.timeout)
		}
		if !tellsWhenToRetry() {
			f.EnableRetryAfterHeader = false
		}
	})
	if err := envoytest.Decode(protojson.Format(b), new(bootstrapv3.Bootstrap)); err != nil {
		w.Fatalf("what became of examples/%s/envoy.yaml: %v", how.example, err)
	}
	return b
}

// change changes the rate-limit filter of a configuration.
func (w *world) change(b *bootstrapv3.Bootstrap, change func(*ratelimitv3.RateLimit)) {
	w.Helper()
	m, err := envoytest.ConnectionManager(b, "edge")
	if err != nil {
		w.Fatal(err)
	}
	f := new(ratelimitv3.RateLimit)
	if err := m.GetHttpFilters()[0].GetTypedConfig().UnmarshalTo(f); err != nil {
		w.Fatal(err)
	}
	change(f)
	if err := m.GetHttpFilters()[0].GetTypedConfig().MarshalFrom(f); err != nil {
		w.Fatal(err)
	}
	in := b.GetStaticResources().GetListeners()[0].GetFilterChains()[0].GetFilters()[0]
	in.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: w.pack(m)}
}

func (w *world) pack(m proto.Message) *anypb.Any {
	w.Helper()
	packed, err := anypb.New(m)
	if err != nil {
		w.Fatal(err)
	}
	return packed
}

func address(addr string) *corev3.Address {
	host, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.ParseUint(port, 10, 16) // it is one of ours
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(n)},
	}}}
}

// played is a filter that is played.
type played struct {
	p  *envoytest.Proxy
	at string
}

func (p played) base() string           { return p.at }
func (p played) stats() envoytest.Stats { return p.p.Stats() }
func (p played) log() string            { return p.p.Log() }

func (p played) trouble() (all []string) {
	ended := p.p.Errors()
	for _, err := range slices.Sorted(maps.Keys(ended)) {
		all = append(all, fmt.Sprintf("%d × %s", ended[err], err))
	}
	return all
}

// actual is an Envoy.
type actual struct {
	w       *world
	process *testkit.Server
	dir     string
}

// envoy starts an Envoy with a configuration, and waits until it has found all services healthy.
func (w *world) envoy(b *bootstrapv3.Bootstrap, services int) *actual {
	w.Helper()
	e := &actual{w: w, dir: w.TempDir()}
	config, said := filepath.Join(e.dir, "envoy.json"), filepath.Join(e.dir, "log")
	healthy := fmt.Sprintf("cluster.ratelimitd.membership_healthy: %d\n", services)
	e.process = testkit.Start(w, &testkit.Program{
		Name: "sh", Package: "dash", // to keep apart what it says of itself and of requests
		Args: func(port int) []string {
			b.StaticResources.Listeners[0].Address = address(fmt.Sprintf("127.0.0.1:%d", port))
			text, err := protojson.Marshal(b)
			if err == nil {
				err = os.WriteFile(config, text, 0o600)
			}
			if err != nil {
				w.Fatal(err)
			}
			_ = os.Remove(filepath.Join(e.dir, "admin")) // of an earlier start
			return []string{
				"-c", `out=$1; shift; exec "$@" >"$out"`, "sh", said, *envoy, "-c", config, "--admin-address-path", filepath.Join(e.dir, "admin"),
				"--disable-hot-restart", "--concurrency", "2", "--log-level", "warn", "--file-flush-interval-msec", "50",
			}
		},
		Ready: func(*testkit.Server, string) bool {
			ready, err := e.admin("/ready")
			if err != nil || !strings.HasPrefix(ready, "LIVE") {
				return false
			}
			members, err := e.admin("/stats?filter=membership_healthy")
			return err == nil && strings.Contains(members, healthy)
		},
	})
	w.Cleanup(callers.CloseIdleConnections)
	return e
}

func (e *actual) base() string { return "http://" + e.process.Addr() }

// admin returns a page of Envoy's administration.
func (e *actual) admin(page string) (string, error) {
	at, err := os.ReadFile(filepath.Join(e.dir, "admin"))
	if err != nil {
		return "", err
	}
	status, text, err := testkit.Fetch(context.WithoutCancel(e.w.Context()), http.MethodGet, "http://"+strings.TrimSpace(string(at))+page, "")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s: %d", page, status)
	}
	return text, err
}

func (e *actual) stats() (s envoytest.Stats) {
	e.w.Helper()
	text, err := e.admin("/stats?filter=" + url.QueryEscape(`^cluster\..*\.ratelimit\.`))
	if err != nil {
		e.w.Fatal(err)
	}
	for name, to := range map[string]*int{"ok": &s.OK, "over_limit": &s.Over, "error": &s.Error, "failure_mode_allowed": &s.Allowed} {
		for _, found := range regexp.MustCompile(`(?m)\.`+name+`: (\d+)$`).FindAllStringSubmatch(text, -1) {
			n, _ := strconv.Atoi(found[1]) // they are digits
			*to += n
		}
	}
	return s
}

// trouble returns what Envoy counts of calls to the services. It does not say how each of them ended.
func (e *actual) trouble() (all []string) {
	e.w.Helper()
	text, err := e.admin("/stats?usedonly&filter=" + url.QueryEscape(
		`^cluster\.ratelimitd\.(upstream_rq_(\d|timeout|rx_reset|tx_reset|pending_overflow|retry)|upstream_cx_(connect_fail|connect_timeout|destroy_remote|none_healthy)|`+
			`membership_healthy|health_check\.(failure|passive_failure|network_failure))`))
	if err != nil {
		return []string{err.Error()}
	}
	e.w.Logf("Envoy printed:\n%s", e.process.Said())
	return strings.FieldsFunc(text, func(c rune) bool { return c == '\n' })
}

func (e *actual) log() string {
	text, err := os.ReadFile(filepath.Join(e.dir, "log"))
	if err != nil {
		e.w.Fatal(err)
	}
	return string(text)
}

// release returns the version of the Envoy, such as 1.40.0; "" if its filter is played.
func release() string {
	if *envoy == "" {
		return ""
	}
	out, err := exec.Command(*envoy, "--version").Output()
	if version := versionIn(string(out)); err == nil && version != "" {
		return version
	}
	return "of an unknown version"
}

// versionIn returns the version in what envoy --version prints: a path, which may have a version too, and then such as
// version: 1f3ab2/1.40.0/Clean/RELEASE/BoringSSL.
func versionIn(printed string) string {
	found := regexp.MustCompile(`version: [^/]*/(\d+\.\d+\.\d+)[/-]`).FindStringSubmatch(printed)
	if found == nil {
		return ""
	}
	return found[1]
}

// tellsWhenToRetry reports whether the proxy knows enable_retry_after_header, which older versions of Envoy reject.
func tellsWhenToRetry() bool {
	const since = 40
	parts := strings.Split(release(), ".")
	if len(parts) != 3 {
		return *envoy == ""
	}
	minor, _ := strconv.Atoi(parts[1]) // it is digits
	return parts[0] != "1" || minor >= since
}
