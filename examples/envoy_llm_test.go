package examples_test

import (
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	contentv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/content_parsers/json/v3"
	ssev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/sse_to_metadata/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// llmLimits returns what envoy-llm/envoy.yaml asks for a chat.
func llmLimits(t *testing.T) []*routev3.RateLimit {
	t.Helper()
	var b bootstrapv3.Bootstrap
	testkit.Check(t, envoytest.Decode(read(t, "envoy-llm/envoy.yaml"), &b))
	return perRoute(t, connectionManager(t, &b, "edge").GetRouteConfig().GetVirtualHosts()[0], "/v1/chat").GetRateLimits()
}

// TestEnvoyLLMReadsUsage: what is settled is what the filters before read.
func TestEnvoyLLMReadsUsage(t *testing.T) {
	t.Parallel()
	var b bootstrapv3.Bootstrap
	testkit.Check(t, envoytest.Decode(read(t, "envoy-llm/envoy.yaml"), &b))
	filters := connectionManager(t, &b, "edge").GetHttpFilters()
	sse := unpack(t, filters[1].GetTypedConfig(), &ssev3.SseToMetadata{})
	parser := unpack(t, sse.GetResponseRules().GetContentParser().GetTypedConfig(), &contentv3.JsonContentParser{})
	present := parser.GetRules()[0].GetRule().GetOnPresent()
	limits := llmLimits(t)
	want := "%DYNAMIC_METADATA(" + present.GetMetadataNamespace() + ":" + present.GetKey() + ")%"
	if got := limits[1].GetHitsAddend().GetFormat(); got != want {
		t.Errorf("the charge is %s, and the usage is in %s", got, want)
	}
	set := load(t, descriptors.Options{Strict: true}, source(t, "envoy-llm/rules/llm.yaml"))
	for r := range set.Rules() {
		last := limits[1].GetActions()[len(limits[1].GetActions())-1].GetMetadata()
		if r.Reserve != nil && last.GetDescriptorKey() != r.Reserve.Entry {
			t.Errorf("the id is in the entry %s, want %s", last.GetDescriptorKey(), r.Reserve.Entry)
		}
	}
}
