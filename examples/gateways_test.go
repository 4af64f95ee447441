package examples_test

import (
	"strconv"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// asking is how a proxy asks ratelimitd: the parts of Envoy's configuration that follow from the resources of its controller.
type asking struct {
	Domain, Cluster  string
	Timeout          time.Duration
	Deny, Headers    bool
	RateLimits       []*routev3.RateLimit
	Filter           string // its name
	InRoute, Default bool   // rate_limits are the route's own; the filter is on for all routes
}

// TestGateways: envoy.yaml of kgateway, Contour and Emissary is what the controller makes of the resources beside it. tools/e2e has a
// real Envoy load the file, and sends requests through it.
func TestGateways(t *testing.T) {
	t.Parallel()
	for example, resources := range map[string]func(*testing.T) asking{"kgateway": kgateway, "contour": contour, "emissary": emissary} {
		t.Run(example, func(t *testing.T) {
			t.Parallel()
			hcm := connectionManager(t, bootstrapOf(t, example, asItIs), "edge")
			f := unpack(t, hcm.GetHttpFilters()[0].GetTypedConfig(), &ratelimitv3.RateLimit{})
			got := asking{
				Domain: f.GetDomain(), Cluster: f.GetRateLimitService().GetGrpcService().GetEnvoyGrpc().GetClusterName(),
				Timeout: f.GetTimeout().AsDuration(), Deny: f.GetFailureModeDeny(), Headers: f.GetEnableXRatelimitHeaders() != 0,
				Filter: hcm.GetHttpFilters()[0].GetName(), Default: !hcm.GetHttpFilters()[0].GetDisabled(),
			}
			route := hcm.GetRouteConfig().GetVirtualHosts()[0].GetRoutes()[0]
			if got.RateLimits = route.GetRoute().GetRateLimits(); len(got.RateLimits) > 0 {
				got.InRoute = true
			} else {
				got.RateLimits = unpack(t, route.GetTypedPerFilterConfig()[got.Filter], &ratelimitv3.RateLimitPerRoute{}).GetRateLimits()
			}
			if diff := cmp.Diff(resources(t), got, protocmp.Transform()); diff != "" {
				t.Errorf("(-what the resources mean +envoy.yaml):\n%s", diff)
			}
		})
	}
}

func genericKey(key, value string) *routev3.RateLimit_Action {
	return &routev3.RateLimit_Action{ActionSpecifier: &routev3.RateLimit_Action_GenericKey_{
		GenericKey: &routev3.RateLimit_Action_GenericKey{DescriptorKey: key, DescriptorValue: value},
	}}
}

func requestHeader(header, key string) *routev3.RateLimit_Action {
	return &routev3.RateLimit_Action{ActionSpecifier: &routev3.RateLimit_Action_RequestHeaders_{
		RequestHeaders: &routev3.RateLimit_Action_RequestHeaders{HeaderName: header, DescriptorKey: key},
	}}
}

// serviceRef names a Service, or another object.
type serviceRef struct {
	Group, Kind, Name, Namespace string
	Port                         int
}

func kgateway(t *testing.T) asking {
	t.Helper()
	var extension struct {
		meta `yaml:",inline"`
		Spec struct {
			Type      string
			RateLimit struct {
				Domain            string
				Timeout           time.Duration
				FailOpen          bool   `yaml:"failOpen"`
				XRateLimitHeaders string `yaml:"xRateLimitHeaders"`
				GrpcService       struct {
					BackendRef serviceRef `yaml:"backendRef"`
				} `yaml:"grpcService"`
			} `yaml:"rateLimit"`
		}
	}
	var grant struct {
		meta `yaml:",inline"`
		Spec struct{ From, To []serviceRef }
	}
	var policy struct {
		meta `yaml:",inline"`
		Spec struct {
			TargetRefs []serviceRef `yaml:"targetRefs"`
			RateLimit  struct {
				Global struct {
					ExtensionRef serviceRef `yaml:"extensionRef"`
					Descriptors  []struct {
						Entries []struct {
							Type, Header string
							Generic      struct{ Key, Value string }
						}
					}
				}
			} `yaml:"rateLimit"`
		}
	}
	decodeStrict(t, read(t, "kgateway/policy.yaml"), func(kind string) any {
		return map[string]any{"GatewayExtension": &extension, "ReferenceGrant": &grant, "TrafficPolicy": &policy}[kind]
	})
	provider, global := extension.Spec.RateLimit, policy.Spec.RateLimit.Global
	service := provider.GrpcService.BackendRef
	if extension.Spec.Type != "RateLimit" || global.ExtensionRef.Name != extension.Metadata.Name || policy.Metadata.Namespace != extension.Metadata.Namespace {
		t.Errorf("the policy refers to %+v, and the extension is %+v", global.ExtensionRef, extension)
	}
	if grant.Metadata.Namespace != service.Namespace || grant.Spec.From[0].Namespace != extension.Metadata.Namespace || grant.Spec.To[0].Kind != "Service" {
		t.Errorf("the grant is %+v", grant)
	}
	var actions []*routev3.RateLimit_Action
	for _, d := range global.Descriptors { // into one
		for _, e := range d.Entries {
			if e.Type == "Header" {
				actions = append(actions, requestHeader(e.Header, e.Header))
			} else {
				actions = append(actions, genericKey(e.Generic.Key, e.Generic.Value))
			}
		}
	}
	return asking{
		Domain: provider.Domain, Timeout: provider.Timeout, Deny: !provider.FailOpen, Headers: provider.XRateLimitHeaders == "DraftVersion03",
		Cluster:    "kube_" + service.Namespace + "_" + service.Name + "_" + strconv.Itoa(service.Port),
		Filter:     "ratelimit/" + extension.Metadata.Namespace + "/" + extension.Metadata.Name,
		RateLimits: []*routev3.RateLimit{{Actions: actions}},
	}
}

func contour(t *testing.T) asking {
	t.Helper()
	var extension struct {
		meta `yaml:",inline"`
		Spec struct {
			Protocol      string
			Services      []serviceRef
			TimeoutPolicy struct{ Response time.Duration } `yaml:"timeoutPolicy"`
		}
	}
	var file struct {
		meta `yaml:",inline"`
		Data map[string]string
	}
	decodeStrict(t, read(t, "contour/contour.yaml"), func(kind string) any {
		return map[string]any{"ExtensionService": &extension, "ConfigMap": &file}[kind]
	})
	var config struct {
		RateLimitService struct {
			ExtensionService            string `yaml:"extensionService"`
			Domain                      string
			FailOpen                    bool `yaml:"failOpen"`
			EnableXRateLimitHeaders     bool `yaml:"enableXRateLimitHeaders"`
			EnableResourceExhaustedCode bool `yaml:"enableResourceExhaustedCode"`
		} `yaml:"rateLimitService"`
	}
	testkit.Check(t, yaml.Unmarshal([]byte(file.Data["contour.yaml"]), &config))
	var proxy struct {
		meta `yaml:",inline"`
		Spec struct {
			VirtualHost struct{ FQDN string } `yaml:"virtualhost"`
			Routes      []struct {
				Conditions      []struct{ Prefix string }
				Services        []serviceRef
				RateLimitPolicy struct {
					Global struct {
						Descriptors []struct {
							Entries []struct {
								GenericKey    struct{ Key, Value string } `yaml:"genericKey"`
								RequestHeader struct {
									HeaderName    string `yaml:"headerName"`
									DescriptorKey string `yaml:"descriptorKey"`
								} `yaml:"requestHeader"`
							}
						}
					}
				} `yaml:"rateLimitPolicy"`
			}
		}
	}
	decodeStrict(t, read(t, "contour/httpproxy.yaml"), func(string) any { return &proxy })
	service, name := config.RateLimitService, extension.Metadata.Namespace+"/"+extension.Metadata.Name
	if service.ExtensionService != name || extension.Spec.Protocol != "h2c" {
		t.Errorf("contour.yaml refers to %s, and the service is %s, %s", service.ExtensionService, name, extension.Spec.Protocol)
	}
	var limits []*routev3.RateLimit
	for _, d := range proxy.Spec.Routes[0].RateLimitPolicy.Global.Descriptors {
		limit := new(routev3.RateLimit)
		for _, e := range d.Entries {
			if e.GenericKey.Key != "" {
				limit.Actions = append(limit.Actions, genericKey(e.GenericKey.Key, e.GenericKey.Value))
			} else {
				limit.Actions = append(limit.Actions, requestHeader(e.RequestHeader.HeaderName, e.RequestHeader.DescriptorKey))
			}
		}
		limits = append(limits, limit)
	}
	return asking{
		Domain: service.Domain, Timeout: extension.Spec.TimeoutPolicy.Response, Deny: !service.FailOpen, Headers: service.EnableXRateLimitHeaders,
		Cluster: "extension/" + name, Filter: "envoy.filters.http.ratelimit", RateLimits: limits, InRoute: true, Default: true,
	}
}

func emissary(t *testing.T) asking {
	t.Helper()
	var service struct {
		meta `yaml:",inline"`
		Spec struct {
			Service         string
			ProtocolVersion string `yaml:"protocol_version"`
			Domain          string
			TimeoutMS       int  `yaml:"timeout_ms"`
			FailureModeDeny bool `yaml:"failure_mode_deny"`
		}
	}
	decodeStrict(t, read(t, "emissary/ratelimitservice.yaml"), func(string) any { return &service })
	var mapping struct {
		meta `yaml:",inline"`
		Spec struct {
			Hostname, Prefix, Service string
			Labels                    map[string][]map[string][]struct {
				GenericKey     struct{ Key, Value string } `yaml:"generic_key"`
				RequestHeaders struct {
					Key        string
					HeaderName string `yaml:"header_name"`
				} `yaml:"request_headers"`
			}
		}
	}
	decodeStrict(t, read(t, "emissary/mapping.yaml"), func(string) any { return &mapping })
	if service.Spec.Service != "ratelimitd:8081" || service.Spec.ProtocolVersion != "v3" {
		t.Errorf("the service is %+v", service.Spec)
	}
	var limits []*routev3.RateLimit
	for _, group := range mapping.Spec.Labels[service.Spec.Domain] {
		for _, labels := range group {
			limit := &routev3.RateLimit{Stage: wrapperspb.UInt32(0)}
			for _, l := range labels {
				if l.GenericKey.Key != "" {
					limit.Actions = append(limit.Actions, genericKey(l.GenericKey.Key, l.GenericKey.Value))
				} else {
					limit.Actions = append(limit.Actions, requestHeader(l.RequestHeaders.HeaderName, l.RequestHeaders.Key))
				}
			}
			limits = append(limits, limit)
		}
	}
	return asking{
		Domain: service.Spec.Domain, Timeout: time.Duration(service.Spec.TimeoutMS) * time.Millisecond, Deny: service.Spec.FailureModeDeny,
		Cluster: "cluster_ratelimitd_8081_" + service.Metadata.Namespace, Filter: "envoy.filters.http.ratelimit",
		RateLimits: limits, InRoute: true, Default: true,
	}
}
