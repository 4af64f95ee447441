package examples_test

import (
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/ratelimit/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	rlcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
)

// meta has the common fields of the Kubernetes objects in these files.
type meta struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct {
		Name, Namespace string
		Labels          map[string]string
	}
}

// envoyFilter has the fields of Istio's EnvoyFilter that envoyfilter.yaml uses.
type envoyFilter struct {
	meta `yaml:",inline"`
	Spec struct {
		WorkloadSelector struct{ Labels map[string]string } `yaml:"workloadSelector"`
		ConfigPatches    []struct {
			ApplyTo string `yaml:"applyTo"`
			Match   struct {
				Context  string
				Listener struct {
					FilterChain struct {
						Filter struct {
							Name      string
							SubFilter struct{ Name string } `yaml:"subFilter"`
						}
					} `yaml:"filterChain"`
				}
				RouteConfiguration struct {
					Vhost struct {
						Name  string
						Route struct{ Action string }
					}
				} `yaml:"routeConfiguration"`
			}
			Patch struct {
				Operation string
				Value     map[string]any
			}
		} `yaml:"configPatches"`
	}
}

func envoyFilters(t *testing.T) []*envoyFilter {
	t.Helper()
	var all []*envoyFilter
	decodeStrict(t, read(t, "istio/envoyfilter.yaml"), func(kind string) any {
		if kind != "EnvoyFilter" {
			return nil
		}
		all = append(all, &envoyFilter{})
		return all[len(all)-1]
	})
	if len(all) != 2 {
		t.Fatalf("%d EnvoyFilters, want 2", len(all))
	}
	return all
}

func TestIstioFilterPatch(t *testing.T) {
	t.Parallel()
	p := envoyFilters(t)[0].Spec.ConfigPatches[0]
	if p.ApplyTo != "HTTP_FILTER" || p.Patch.Operation != "INSERT_BEFORE" || p.Match.Context != "GATEWAY" ||
		p.Match.Listener.FilterChain.Filter.Name != "envoy.filters.network.http_connection_manager" ||
		p.Match.Listener.FilterChain.Filter.SubFilter.Name != "envoy.filters.http.router" {
		t.Errorf("the filter is not put before the router of the gateway: %+v", p)
	}
	var f hcmv3.HttpFilter
	testkit.Check(t, envoytest.DecodeTree(p.Patch.Value, &f))
	if f.GetName() != envoytest.FilterName {
		t.Errorf("the filter's name is %q, want %q", f.GetName(), envoytest.FilterName)
	}
	want := &ratelimitv3.RateLimit{
		Domain:                         "ratelimit",
		StatPrefix:                     "ingress",
		Timeout:                        durationpb.New(50 * time.Millisecond),
		EnableXRatelimitHeaders:        ratelimitv3.RateLimit_DRAFT_VERSION_03,
		RateLimitedAsResourceExhausted: true,
		RateLimitService: &ratelimitconfigv3.RateLimitServiceConfig{
			TransportApiVersion: corev3.ApiVersion_V3,
			GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
					ClusterName: "outbound|8081||ratelimit.default.svc.cluster.local",
					Authority:   "ratelimit.default.svc.cluster.local",
				},
			}},
		},
	}
	if diff := cmp.Diff(want, unpack(t, f.GetTypedConfig(), &ratelimitv3.RateLimit{}), protocmp.Transform()); diff != "" {
		t.Errorf("filter (-want +got):\n%s", diff)
	}
}

// istioActions returns the actions of the route patch, merged into a virtual host as Istio does.
func istioActions(t *testing.T) []*routev3.RateLimit_Action {
	t.Helper()
	p := envoyFilters(t)[1].Spec.ConfigPatches[0]
	if p.ApplyTo != "VIRTUAL_HOST" || p.Patch.Operation != "MERGE" || p.Match.Context != "GATEWAY" || p.Match.RouteConfiguration.Vhost.Route.Action != "ANY" {
		t.Fatalf("the descriptors are not merged into every virtual host of the gateway: %+v", p)
	}
	value := p.Patch.Value
	value["name"], value["domains"] = "any", []string{"*"} // from the host that it is merged into
	var host routev3.VirtualHost
	testkit.Check(t, envoytest.DecodeTree(value, &host))
	limits := unpack(t, host.GetTypedPerFilterConfig()[envoytest.FilterName], &ratelimitv3.RateLimitPerRoute{}).GetRateLimits()
	if len(limits) != 1 {
		t.Fatalf("%d rate limits, want 1", len(limits))
	}
	return limits[0].GetActions()
}

// destinationRule has the fields of Istio's DestinationRule that destinationrule.yaml uses.
type destinationRule struct {
	meta `yaml:",inline"`
	Spec struct {
		Host          string
		TrafficPolicy struct {
			ConnectionPool struct {
				HTTP struct {
					HTTP2MaxRequests        int `yaml:"http2MaxRequests"`
					HTTP1MaxPendingRequests int `yaml:"http1MaxPendingRequests"`
				}
			} `yaml:"connectionPool"`
			OutlierDetection struct {
				Consecutive5xxErrors     int           `yaml:"consecutive5xxErrors"`
				ConsecutiveGatewayErrors int           `yaml:"consecutiveGatewayErrors"`
				Interval                 time.Duration `yaml:"interval"`
				BaseEjectionTime         time.Duration `yaml:"baseEjectionTime"`
				MaxEjectionPercent       int           `yaml:"maxEjectionPercent"`
			} `yaml:"outlierDetection"`
		} `yaml:"trafficPolicy"`
	}
}

// TestIstioDestinationRule: the rule is about the Service that the filter asks, lets all calls through, and takes out replicas that fail,
// but never all of them.
func TestIstioDestinationRule(t *testing.T) {
	t.Parallel()
	var r destinationRule
	decodeStrict(t, read(t, "istio/destinationrule.yaml"), func(kind string) any {
		if kind != "DestinationRule" {
			return nil
		}
		return &r
	})
	if r.APIVersion != "networking.istio.io/v1" || r.Metadata.Namespace != "default" {
		t.Errorf("the object is a %s in namespace %q", r.APIVersion, r.Metadata.Namespace)
	}
	var f ratelimitv3.RateLimit
	var filter hcmv3.HttpFilter
	testkit.Check(t, envoytest.DecodeTree(envoyFilters(t)[0].Spec.ConfigPatches[0].Patch.Value, &filter))
	cluster := unpack(t, filter.GetTypedConfig(), &f).GetRateLimitService().GetGrpcService().GetEnvoyGrpc().GetClusterName()
	if cluster != "outbound|8081||"+r.Spec.Host {
		t.Errorf("the rule is for %s, and the filter asks %s", r.Spec.Host, cluster)
	}
	pool, outliers := r.Spec.TrafficPolicy.ConnectionPool.HTTP, r.Spec.TrafficPolicy.OutlierDetection
	if pool.HTTP2MaxRequests < 100_000 || pool.HTTP1MaxPendingRequests < 100_000 {
		t.Errorf("the circuit breaker lets only %+v through", pool)
	}
	if outliers.Consecutive5xxErrors < 1 || outliers.ConsecutiveGatewayErrors < 1 || outliers.Interval > time.Second ||
		outliers.BaseEjectionTime < time.Second || outliers.MaxEjectionPercent < 1 || outliers.MaxEjectionPercent > 50 {
		t.Errorf("replicas that fail are taken out so: %+v", outliers)
	}
}

// TestIstio starts the server as the Deployment does, and sends the requests that the gateway would.
func TestIstio(t *testing.T) {
	t.Parallel()
	m := readManifests(t, "istio/ratelimitd.yaml")
	if env := m.env(); env["REDIS_URL"] != "redis:6379" || env["REDIS_SOCKET_TYPE"] != "tcp" { // the Service of Istio's sample
		t.Errorf("Redis is at %s %q, want tcp redis:6379", env["REDIS_SOCKET_TYPE"], env["REDIS_URL"])
	}
	s := m.start(t, nil)
	action := istioActions(t)[0].GetRequestHeaders()
	if action.GetHeaderName() != ":path" {
		t.Fatalf("the gateway sends %v, want the path", action)
	}
	request := &rlsv3.RateLimitRequest{
		Domain: "ratelimit",
		Descriptors: []*rlcommonv3.RateLimitDescriptor{{Entries: []*rlcommonv3.RateLimitDescriptor_Entry{
			{Key: action.GetDescriptorKey(), Value: "/productpage"},
		}}},
	}
	passed := 0
	for range 3 {
		answer, err := s.client.ShouldRateLimit(t.Context(), request)
		testkit.Check(t, err)
		if answer.GetOverallCode() == rlsv3.RateLimitResponse_OK {
			passed++
		}
	}
	if passed != 1 && passed != 2 { // 2 if a minute begins in between
		t.Errorf("%d of 3 requests for /productpage passed, want 1 a minute", passed)
	}
}
