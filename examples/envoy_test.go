package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/ratelimit/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
)

const protocolName = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// envoyExamples are the directories with an envoy.yaml.
var envoyExamples = []string{"envoy", "envoy-llm", "envoy-tls"}

// bootstrap returns the decoded and validated envoy.yaml of examples/envoy, after change has been applied to its text.
func bootstrap(t *testing.T, change func(string) string) *bootstrapv3.Bootstrap {
	t.Helper()
	return bootstrapOf(t, "envoy", change)
}

// bootstrapOf is bootstrap of another example.
func bootstrapOf(t *testing.T, example string, change func(string) string) *bootstrapv3.Bootstrap {
	t.Helper()
	var b bootstrapv3.Bootstrap
	if err := envoytest.Decode(change(read(t, example+"/envoy.yaml")), &b); err != nil {
		t.Fatalf("%s: %v", example, err)
	}
	return &b
}

func asItIs(text string) string { return text }

// connectionManager returns the connection manager of the listener with the given name.
func connectionManager(t *testing.T, b *bootstrapv3.Bootstrap, listener string) *hcmv3.HttpConnectionManager {
	t.Helper()
	hcm, err := envoytest.ConnectionManager(b, listener)
	testkit.Check(t, err)
	return hcm
}

// filter returns the configuration of the rate-limit filter, which must be right before the router.
func filter(t *testing.T, hcm *hcmv3.HttpConnectionManager) *ratelimitv3.RateLimit {
	t.Helper()
	var names []string
	for _, f := range hcm.GetHttpFilters() {
		names = append(names, f.GetName())
	}
	if diff := cmp.Diff([]string{envoytest.FilterName, "envoy.filters.http.router"}, names); diff != "" {
		t.Fatalf("HTTP filters (-want +got):\n%s", diff)
	}
	return unpack(t, hcm.GetHttpFilters()[0].GetTypedConfig(), &ratelimitv3.RateLimit{})
}

// TestEnvoyFilesAreChecked: check finds nothing wrong with the files for Envoy, each with its rules.
func TestEnvoyFilesAreChecked(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*/envoy.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("finding envoy.yaml: %v in %v", err, files)
	}
	for _, file := range append(files, "istio/envoyfilter.yaml") {
		args := []string{"check", "--strict", "--envoy", file}
		if rules := filepath.Join(filepath.Dir(file), "rules"); exists(rules) {
			args = append(args, rules)
		}
		out, err := exec.CommandContext(t.Context(), binaries.Path(t, "ratelimitd"), args...).CombinedOutput()
		if want := regexp.MustCompile(`(?m)^` + file + `: ok, (1 filter of|.* 1 of rate_limit_quota).* 0 warnings$`); err != nil || !want.Match(out) {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestEnvoyFilter(t *testing.T) {
	t.Parallel()
	want := &ratelimitv3.RateLimit{
		Domain:                         "edge",
		StatPrefix:                     "edge",
		Timeout:                        durationpb.New(50 * time.Millisecond),
		EnableXRatelimitHeaders:        ratelimitv3.RateLimit_DRAFT_VERSION_03,
		EnableRetryAfterHeader:         true,
		RateLimitedAsResourceExhausted: true,
		RateLimitService: &ratelimitconfigv3.RateLimitServiceConfig{
			TransportApiVersion: corev3.ApiVersion_V3,
			GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "ratelimitd"},
			}},
		},
	}
	got := filter(t, connectionManager(t, bootstrap(t, asItIs), "edge"))
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("filter (-want +got):\n%s", diff)
	}
	if !strings.Contains(read(t, "envoy/envoy.yaml"), "failure_mode_deny: false\n") {
		t.Error("envoy.yaml does not say failure_mode_deny, whose default it keeps")
	}
}

// TestEnvoyFailureModeDenyPercent checks that the lines that are commented out are valid.
func TestEnvoyFailureModeDenyPercent(t *testing.T) {
	t.Parallel()
	b := bootstrap(t, func(text string) string {
		before, after, found := strings.Cut(text, "# failure_mode_deny_percent:\n")
		if !found {
			t.Fatal("envoy.yaml shows no failure_mode_deny_percent")
		}
		lines := strings.SplitAfterN(after, "\n", 3)
		for i, line := range lines[:2] {
			lines[i] = strings.Replace(line, "# ", "", 1)
		}
		return before + "failure_mode_deny_percent:\n" + strings.Join(lines, "")
	})
	percent := filter(t, connectionManager(t, b, "edge")).GetFailureModeDenyPercent()
	if percent.GetDefaultValue().GetNumerator() != 10 || percent.GetRuntimeKey() == "" {
		t.Errorf("failure_mode_deny_percent is %v, want 10 %% and a runtime key", percent)
	}
}

// perRoute returns the filter's configuration for the route with the given prefix.
func perRoute(t *testing.T, host *routev3.VirtualHost, prefix string) *ratelimitv3.RateLimitPerRoute {
	t.Helper()
	for _, r := range host.GetRoutes() {
		if r.GetMatch().GetPrefix() == prefix {
			return unpack(t, r.GetTypedPerFilterConfig()[envoytest.FilterName], &ratelimitv3.RateLimitPerRoute{})
		}
	}
	t.Fatalf("no route for %q", prefix)
	return nil
}

// TestEnvoyRoutes checks that hits_addend is where Envoy reads it: a look before, and a charge afterwards.
func TestEnvoyRoutes(t *testing.T) {
	t.Parallel()
	host := connectionManager(t, bootstrap(t, asItIs), "edge").GetRouteConfig().GetVirtualHosts()[0]
	if len(host.GetRateLimits()) > 0 {
		t.Error("the virtual host has rate_limits, where hits_addend is not read")
	}
	for _, r := range host.GetRoutes() {
		if len(r.GetRoute().GetRateLimits()) > 0 {
			t.Errorf("route %v has rate_limits, where hits_addend is not read", r.GetMatch())
		}
		if len(perRoute(t, host, r.GetMatch().GetPrefix()).GetRateLimits()) == 0 {
			t.Errorf("route %v has no descriptors", r.GetMatch())
		}
	}
	limits := perRoute(t, host, "/v1/chat").GetRateLimits()
	if len(limits) != 3 {
		t.Fatalf("/v1/chat has %d rate limits, want 3", len(limits))
	}
	check, charge := limits[1], limits[2]
	if diff := cmp.Diff(&routev3.RateLimit_HitsAddend{Number: wrapperspb.UInt64(0)}, check.GetHitsAddend(), protocmp.Transform()); diff != "" {
		t.Errorf("hits_addend of the check (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&routev3.RateLimit_HitsAddend{Format: "%RESP(x-tokens-used)%"}, charge.GetHitsAddend(), protocmp.Transform()); diff != "" {
		t.Errorf("hits_addend of the charge (-want +got):\n%s", diff)
	}
	if check.GetApplyOnStreamDone() || !charge.GetApplyOnStreamDone() {
		t.Error("want apply_on_stream_done on the charge alone")
	}
	if !slices.EqualFunc(check.GetActions(), charge.GetActions(), func(a, b *routev3.RateLimit_Action) bool { return proto.Equal(a, b) }) {
		t.Error("check and charge do not name one counter")
	}
}

// TestEnvoyAsksLoopback: one file serves a shell and compose.yaml, where both processes share a network.
func TestEnvoyAsksLoopback(t *testing.T) {
	t.Parallel()
	for _, example := range envoyExamples {
		at := bootstrapOf(t, example, asItIs).GetStaticResources().GetClusters()[0].GetLoadAssignment()
		address := at.GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress()
		if at.GetClusterName() != "ratelimitd" || address.GetAddress() != "127.0.0.1" || address.GetPortValue() != 8081 {
			t.Errorf("%s: the first cluster is %s at %v, want ratelimitd at 127.0.0.1:8081", example, at.GetClusterName(), address)
		}
		if example != "envoy-tls" { // which has no compose.yaml
			composeEnv(t, example)
		}
	}
}

// TestEnvoyCluster: the cluster speaks HTTP/2, notices in time that a server drains or fails, and bounds no calls.
func TestEnvoyCluster(t *testing.T) {
	t.Parallel()
	env, _ := composeEnv(t, "envoy")
	for _, example := range envoyExamples {
		cluster := bootstrapOf(t, example, asItIs).GetStaticResources().GetClusters()[0]
		options := unpack(t, cluster.GetTypedExtensionProtocolOptions()[protocolName], &upstreamv3.HttpProtocolOptions{})
		http2 := options.GetExplicitHttpConfig().GetHttp2ProtocolOptions()
		if http2 == nil {
			t.Fatalf("%s: the cluster does not speak HTTP/2", example)
		}
		if interval := http2.GetConnectionKeepalive().GetInterval().AsDuration(); interval < 10*time.Second {
			t.Errorf("%s: keepalive every %v; ratelimitd closes connections that ping more often than every 10s", example, interval)
		}
		health := cluster.GetHealthChecks()[0]
		if name := health.GetGrpcHealthCheck().GetServiceName(); name != "ratelimit" {
			t.Errorf("%s: health is asked of %q, want ratelimit", example, name)
		}
		for what, interval := range map[string]time.Duration{"": health.GetInterval().AsDuration(), " without traffic": health.GetNoTrafficInterval().AsDuration()} {
			noticed := time.Duration(health.GetUnhealthyThreshold().GetValue()) * (interval + health.GetTimeout().AsDuration())
			if delay := drainDelay(t, env); interval == 0 || noticed >= delay {
				t.Errorf("%s: checks every %v%s notice that a server drains after up to %v; it serves on for %v", example, interval, what, noticed, delay)
			}
		}
		if outliers := cluster.GetOutlierDetection(); outliers.GetConsecutive_5Xx().GetValue() != 5 || outliers.GetMaxEjectionPercent().GetValue() > 50 {
			t.Errorf("%s: a server that fails is taken out so: %v", example, outliers)
		}
		if bound := cluster.GetCircuitBreakers().GetThresholds()[0]; bound.GetMaxRequests().GetValue() < 100_000 || bound.GetMaxPendingRequests().GetValue() < 100_000 {
			t.Errorf("%s: Envoy lets requests pass beyond %v", example, bound)
		}
	}
}

// TestEnvoyRejectsWhatItDoesNotKnow shows that these tests would find a mistake when they decode.
func TestEnvoyRejectsWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	text := read(t, "envoy/envoy.yaml")
	for _, tt := range []struct{ old, slip, want string }{
		{"stat_prefix: edge\n                      # How", "stats_prefix: edge\n                      # How", `unknown field "stats_prefix"`},
		{"transport_api_version: V3", "transport_api_version: V4", "V4"},
		{"domain: edge", `domain: ""`, "Domain"},
		{"{number: 0}", "{number: 2000000000}", "Number"},
	} {
		slipped := strings.Replace(text, tt.old, tt.slip, 1)
		if slipped == text {
			t.Errorf("envoy.yaml has no %q", tt.old)
		}
		if err := envoytest.Decode(slipped, &bootstrapv3.Bootstrap{}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("with %q: %v, want an error with %q", tt.slip, err, tt.want)
		}
	}
}
