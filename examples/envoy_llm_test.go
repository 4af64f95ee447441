package examples_test

import (
	"maps"
	"net/http"
	"slices"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	contentv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/content_parsers/json/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	ssev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/sse_to_metadata/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ratelimitd/ratelimitd/internal/envoytest"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// llm returns the filter of envoy-llm/envoy.yaml, and what it does for a chat.
func llm(t *testing.T) (*ratelimitv3.RateLimit, []*routev3.RateLimit) {
	t.Helper()
	var b bootstrapv3.Bootstrap
	if err := envoytest.Decode(read(t, "envoy-llm/envoy.yaml"), &b); err != nil {
		t.Fatal(err)
	}
	hcm := connectionManager(t, &b, "edge")
	return unpack(t, hcm.GetHttpFilters()[0].GetTypedConfig(), &ratelimitv3.RateLimit{}),
		perRoute(t, hcm.GetRouteConfig().GetVirtualHosts()[0], "/v1/chat").GetRateLimits()
}

// stream is what Envoy's filter does for a stream: the calls that the configuration asks for, and the metadata that it
// keeps between them.
type stream struct {
	envoytest.Stream

	t      *testing.T
	server *server
}

func (s *server) stream(t *testing.T) *stream {
	t.Helper()
	config, limits := llm(t)
	alice := http.Header{"X-User": {"alice"}}
	return &stream{t: t, server: s, Stream: envoytest.Stream{
		Config: config, Limits: limits, Path: "/v1/chat", Request: alice, Metadata: map[string]*structpb.Struct{},
	}}
}

// call makes the call for the request, or for the end of the stream. It is never made without descriptors.
func (s *stream) call(done bool) rlsv3.RateLimitResponse_Code {
	s.t.Helper()
	r, err := s.Call(done)
	if err != nil {
		s.t.Fatal(err)
	}
	if r == nil {
		return rlsv3.RateLimitResponse_UNKNOWN
	}
	answer, err := s.server.client.ShouldRateLimit(s.t.Context(), r)
	if err != nil {
		s.t.Fatal(err)
	}
	if !done {
		s.Keep(answer)
	}
	return answer.GetOverallCode()
}

// ends ends the stream. tokens is what the answer says that it took, −1 if it says nothing.
func (s *stream) ends(tokens int) {
	s.t.Helper()
	if tokens >= 0 {
		s.Metadata["llm"] = &structpb.Struct{Fields: map[string]*structpb.Value{"total_tokens": structpb.NewNumberValue(float64(tokens))}}
	}
	s.call(true)
}

// TestEnvoyLLM plays streams as the configuration has them, against a server with the environment of compose.yaml: four
// streams of 2000 tokens and one of the rest fit into 10,000, as long as none has said what it took.
func TestEnvoyLLM(t *testing.T) {
	t.Parallel()
	s := startCompose(t, "envoy-llm", nil)
	over := func(want bool) *stream {
		t.Helper()
		one := s.stream(t)
		if got := one.call(false) == rlsv3.RateLimitResponse_OVER_LIMIT; got != want {
			t.Fatalf("over the limit: %t, want %t", got, want)
		}
		return one
	}
	var open []*stream
	for range 5 {
		open = append(open, over(false))
	}
	ids := map[string]bool{}
	for _, one := range open {
		ids[one.Value(envoytest.FilterName, "reservation").GetStringValue()] = true
	}
	if len(ids) != 5 || ids[""] {
		t.Fatalf("the streams have the ids %q, want five", slices.Collect(maps.Keys(ids)))
	}
	over(true).ends(-1) // and gives nothing back
	open[0].ends(1999)
	over(true)
	open[0].ends(0) // once more changes nothing
	over(true)
	open[1].ends(1999)
	open[2].ends(1)
	over(false).ends(4999) // too little was reserved: 1999 + 1999 + 1 + 2 × 2000, and now 4999
	over(true).ends(-1)
	open[3].ends(0)
	open[4].ends(0)
	over(true) // 8998 were spent
	s.stream(t).ends(1002)
	over(true).ends(0)
}

// TestEnvoyLLMReadsUsage: what is settled is what the filters before read.
func TestEnvoyLLMReadsUsage(t *testing.T) {
	t.Parallel()
	var b bootstrapv3.Bootstrap
	if err := envoytest.Decode(read(t, "envoy-llm/envoy.yaml"), &b); err != nil {
		t.Fatal(err)
	}
	filters := connectionManager(t, &b, "edge").GetHttpFilters()
	sse := unpack(t, filters[1].GetTypedConfig(), &ssev3.SseToMetadata{})
	parser := unpack(t, sse.GetResponseRules().GetContentParser().GetTypedConfig(), &contentv3.JsonContentParser{})
	present := parser.GetRules()[0].GetRule().GetOnPresent()
	_, limits := llm(t)
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
