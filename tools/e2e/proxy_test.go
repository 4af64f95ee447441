package e2e

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// callers is the client of all requests to a proxy.
var callers = http.Client{
	Transport:     &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func drain(r io.Reader) (int64, error) { return io.Copy(io.Discard, r) }

// setup is an example's envoy.yaml with changes.
type setup struct {
	example string
	deny    bool          // failure_mode_deny
	timeout time.Duration // of the filter; 0 keeps the example's
	change  func(*config) // further changes; may be nil
	dir     string        // working directory of Envoy; may be empty
}

// patient is a timeout that decisions never reach, even on a busy machine.
const patient = 20 * time.Second

// config is a configuration of Envoy to be changed.
type config struct {
	*bootstrapv3.Bootstrap

	manager *hcmv3.HttpConnectionManager
	filter  *ratelimitv3.RateLimit
	service *clusterv3.Cluster // the cluster of ratelimitd
}

// proxy is an Envoy in front of an application.
type proxy struct {
	w       *world
	process *testkit.Server
	dir     string
}

// proxy starts an Envoy with an example's configuration, and waits until all services are healthy.
func (w *world) proxy(how setup, up *upstream, services ...*service) *proxy {
	w.Helper()
	var addrs []string
	for _, s := range services {
		addrs = append(addrs, s.Addr())
	}
	p := w.front(how, up, addrs...)
	healthy := fmt.Sprintf("cluster.ratelimitd.membership_healthy: %d\n", len(services))
	testkit.Eventually(w, "all services are healthy", func() bool {
		return strings.Contains(p.admin("/stats?filter=membership_healthy"), healthy)
	}, func() string { return strings.Join(p.trouble(), "\n") })
	return p
}

// front starts an Envoy with an example's configuration and services at addrs.
func (w *world) front(how setup, up *upstream, addrs ...string) *proxy {
	w.Helper()
	b := w.bootstrap(how, up, addrs)
	return w.launch(how.dir, func(port int) ([]byte, error) {
		b.StaticResources.Listeners[0].Address = address(fmt.Sprintf("127.0.0.1:%d", port))
		return protojson.Marshal(b)
	})
}

// launch starts an Envoy in a directory, or "", with a configuration whose first listener is on the given port.
func (w *world) launch(in string, config func(port int) ([]byte, error)) *proxy {
	w.Helper()
	p := &proxy{w: w, dir: w.TempDir()}
	file, said := filepath.Join(p.dir, "envoy.json"), filepath.Join(p.dir, "log")
	p.process = testkit.Start(w, &testkit.Program{
		Name: "sh", Package: "dash", // separates Envoy's log from the access log
		Args: func(port int) []string {
			text, err := config(port)
			if err == nil {
				err = os.WriteFile(file, text, 0o600)
			}
			testkit.Check(w, err)
			_ = os.Remove(filepath.Join(p.dir, "admin")) // of an earlier start
			return []string{
				"-c", `cd "$1"; out=$2; shift 2; exec "$@" >"$out"`, "sh", cmp.Or(in, p.dir), said, *envoy, "-c", file, "--admin-address-path", filepath.Join(p.dir, "admin"),
				"--disable-hot-restart", "--concurrency", "2", "--log-level", "warn", "--file-flush-interval-msec", "50",
			}
		},
		Ready: func(*testkit.Server, string) bool {
			ready, err := p.fetch("/ready")
			return err == nil && strings.HasPrefix(ready, "LIVE")
		},
	})
	w.Cleanup(callers.CloseIdleConnections)
	w.proxies = append(w.proxies, p)
	return p
}

// bootstrap returns an example's configuration, with its listener on loopback and its clusters at the given addresses.
func (w *world) bootstrap(how setup, up *upstream, services []string) *bootstrapv3.Bootstrap {
	w.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "examples", how.example, "envoy.yaml"))
	testkit.Check(w, err)
	c := config{Bootstrap: new(bootstrapv3.Bootstrap), filter: new(ratelimitv3.RateLimit)}
	testkit.Check(w, envoytest.Decode(string(text), c.Bootstrap))
	c.Admin.Address = address("127.0.0.1:0")
	c.StaticResources.Listeners = c.StaticResources.Listeners[:1] // the other one simulates the application, which is real here
	if c.manager, err = envoytest.ConnectionManager(c.Bootstrap, "edge"); err != nil {
		w.Fatal(err)
	}
	filter := c.manager.GetHttpFilters()[0]
	asks := filter.GetTypedConfig().MessageIs(c.filter) // whether it calls a service, instead of deciding itself
	if err := filter.GetTypedConfig().UnmarshalTo(c.filter); asks && err != nil {
		w.Fatal(err)
	}
	asked := cmp.Or(c.filter.GetRateLimitService().GetGrpcService().GetEnvoyGrpc().GetClusterName(), "ratelimitd")
	for _, cluster := range c.GetStaticResources().GetClusters() {
		if cluster.GetName() == asked {
			c.service = cluster
			placeAt(cluster, services...)
		} else {
			placeAt(cluster, strings.TrimPrefix(up.URL, "http://"))
		}
	}
	c.filter.FailureModeDeny = how.deny
	if how.timeout > 0 {
		c.filter.Timeout = durationpb.New(how.timeout)
	}
	if !since(sinceRetryAfter) {
		c.filter.EnableRetryAfterHeader = false
	}
	if how.change != nil {
		how.change(&c)
	}
	if asks {
		filter.GetConfigType().(*hcmv3.HttpFilter_TypedConfig).TypedConfig = w.pack(c.filter)
	}
	c.StaticResources.Listeners[0].GetFilterChains()[0].GetFilters()[0].ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: w.pack(c.manager)}
	if err := envoytest.Decode(protojson.Format(c.Bootstrap), new(bootstrapv3.Bootstrap)); err != nil {
		w.Fatalf("examples/%s/envoy.yaml, as changed: %v", how.example, err)
	}
	return c.Bootstrap
}

// placeAt replaces the endpoints of a cluster.
func placeAt(c *clusterv3.Cluster, addrs ...string) {
	all := c.GetLoadAssignment().GetEndpoints()[0]
	all.LbEndpoints = nil
	for _, addr := range addrs {
		all.LbEndpoints = append(all.LbEndpoints, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
			Endpoint: &endpointv3.Endpoint{Address: address(addr)},
		}})
	}
}

func (w *world) pack(m proto.Message) *anypb.Any {
	w.Helper()
	packed, err := anypb.New(m)
	testkit.Check(w, err)
	return packed
}

func address(addr string) *corev3.Address {
	host, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.ParseUint(port, 10, 16) // always a valid port
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(n)},
	}}}
}

func (p *proxy) base() string { return "http://" + p.process.Addr() }

// listener returns the address of an additional listener by name.
func (p *proxy) listener(name string) string {
	p.w.Helper()
	for line := range strings.Lines(p.admin("/listeners")) {
		if at, ok := strings.CutPrefix(strings.TrimSpace(line), name+"::"); ok {
			return "http://" + at
		}
	}
	p.w.Fatalf("Envoy has no listener %s", name)
	return ""
}

// fetch returns a page of Envoy's admin interface.
func (p *proxy) fetch(page string) (string, error) {
	at, err := os.ReadFile(filepath.Join(p.dir, "admin"))
	if err != nil {
		return "", err
	}
	status, text, err := testkit.Fetch(context.WithoutCancel(p.w.Context()), http.MethodGet, "http://"+strings.TrimSpace(string(at))+page, "")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s: %d", page, status)
	}
	return text, err
}

// admin is fetch for a running Envoy.
func (p *proxy) admin(page string) string {
	p.w.Helper()
	text, err := p.fetch(page)
	if err != nil {
		p.w.Fatalf("Envoy's administration: %v", err)
	}
	return text
}

// count returns a statistic of Envoy by its full name; 0 if it does not exist.
func (p *proxy) count(name string) int {
	p.w.Helper()
	text := p.admin("/stats?filter=" + url.QueryEscape("^"+regexp.QuoteMeta(name)+"$"))
	_, value, _ := strings.Cut(strings.TrimSpace(text), ": ")
	n, _ := strconv.Atoi(value)
	return n
}

// counts are the rate-limit filter's.
type counts struct{ ok, over, failed, allowed int }

func (p *proxy) counts() (s counts) {
	p.w.Helper()
	text := p.admin("/stats?filter=" + url.QueryEscape(`^cluster\..*\.ratelimit\.`))
	for name, to := range map[string]*int{"ok": &s.ok, "over_limit": &s.over, "error": &s.failed, "failure_mode_allowed": &s.allowed} {
		for _, found := range regexp.MustCompile(`(?m)\.`+name+`: (\d+)$`).FindAllStringSubmatch(text, -1) {
			n, _ := strconv.Atoi(found[1]) // only digits
			*to += n
		}
	}
	return s
}

// trouble returns Envoy's counts of failed calls to the services, and logs its output.
func (p *proxy) trouble() []string {
	p.w.Helper()
	p.w.Logf("Envoy printed:\n%s", p.process.Output())
	text, err := p.fetch("/stats?usedonly&filter=" + url.QueryEscape(
		`^cluster\.ratelimitd\.(upstream_rq_(\d|timeout|rx_reset|tx_reset|pending_overflow|retry)|upstream_cx_(connect_fail|connect_timeout|destroy_remote|none_healthy|protocol_error)|`+
			`membership_healthy|outlier_detection\.ejections_enforced_total|ssl\.(connection_error|fail_.*)|health_check\.(failure|passive_failure|network_failure))`))
	if err != nil {
		return []string{err.Error()}
	}
	return strings.FieldsFunc(text, func(c rune) bool { return c == '\n' })
}

// log returns the access log.
func (p *proxy) log() string {
	text, err := os.ReadFile(filepath.Join(p.dir, "log"))
	testkit.Check(p.w, err)
	return string(text)
}

// release returns the version of Envoy, such as 1.40.0.
func release() string {
	out, err := exec.Command(*envoy, "--version").Output()
	if version := versionIn(string(out)); err == nil && version != "" {
		return version
	}
	return "of an unknown version"
}

// versionIn returns the version in the output of envoy --version: a path, which may contain a version too, and then,
// for example, version: 1f3ab2/1.40.0/Clean/RELEASE/BoringSSL.
func versionIn(printed string) string {
	found := regexp.MustCompile(`version: [^/]*/(\d+\.\d+\.\d+)[/-]`).FindStringSubmatch(printed)
	if found == nil {
		return ""
	}
	return found[1]
}

// Minor versions of Envoy.
const (
	sinceRetryAfter  = 40 // older versions reject enable_retry_after_header
	sinceGateway     = 40 // version in Envoy Gateway 1.9, at the time of recording
	sinceAnswersRead = 40 // %RESP(…)% in hits_addend; in 1.39.3, it is empty, and the descriptor is omitted
)

// since reports whether Envoy has at least this minor version.
func since(minor int) bool {
	parts := strings.Split(release(), ".")
	if len(parts) != 3 {
		return false
	}
	its, _ := strconv.Atoi(parts[1]) // only digits
	return parts[0] != "1" || its >= minor
}
