package examples_test

import (
	"context"
	"testing"

	rlcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	configv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/config/v1"
)

// quotas is what the AI Gateway's controller sends for a QuotaPolicy of two models, of which the first has a budget for each
// tenant, by a Distinct header, and both have one for all.
func quotas() *configv1.RateLimitConfig {
	limit := func(key, value string, n uint32) *configv1.RateLimitDescriptor {
		return &configv1.RateLimitDescriptor{
			Key: key, Value: value, QuotaMode: true,
			RateLimit: &configv1.RateLimitPolicy{RequestsPerUnit: n, Unit: configv1.RateLimitUnit_RATE_LIMIT_UNIT_DAY},
		}
	}
	model := &configv1.RateLimitDescriptor{
		Key: "model_name_override", Value: "large",
		Descriptors: []*configv1.RateLimitDescriptor{limit("rule-0-x-tenant-match-0", "", 1), limit("rule-1-match--1", "rule-1-match--1", 100)},
	}
	return &configv1.RateLimitConfig{Name: "ai-gateway-quota", Domain: "ai-gateway-quota", Descriptors: []*configv1.RateLimitDescriptor{{
		Key: "backend_name", Value: "default/openai", Descriptors: []*configv1.RateLimitDescriptor{model, limit("model_name_override", "small", 100)},
	}}}
}

// aiGateway serves rules as the AI Gateway's controller does: in clear, for one node id. It returns the address.
func aiGateway(t *testing.T, node string) string {
	t.Helper()
	cache := cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil)
	snapshot, err := cachev3.NewSnapshot("1", map[resourcev3.Type][]types.Resource{resourcev3.RateLimitConfigType: {quotas()}})
	if err == nil {
		err = cache.SetSnapshot(t.Context(), node, snapshot)
	}
	testkit.Check(t, err)
	s := grpc.NewServer()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, serverv3.NewServer(ctx, cache, nil))
	l := testkit.Listen(t)
	go func() { _ = s.Serve(l) }() // it ends with the server
	t.Cleanup(func() { stop(); s.Stop() })
	return l.Addr().String()
}

// TestAIGateway: a tenant without budget is rejected where all its models are over, and not where another model is open.
func TestAIGateway(t *testing.T) {
	t.Parallel()
	m := readManifests(t, "ai-gateway/ratelimitd.yaml")
	s := m.start(t, map[string]string{"CONFIG_GRPC_XDS_SERVER_URL": aiGateway(t, "envoy-ai-gateway-ratelimit"), "DEFAULT_ON_FAILURE": "error"})
	ask := func(want rlsv3.RateLimitResponse_Code, paths ...[]string) (groups any) {
		t.Helper()
		r := &rlsv3.RateLimitRequest{Domain: "ai-gateway-quota"}
		for _, path := range paths {
			d := &rlcommonv3.RateLimitDescriptor{Entries: []*rlcommonv3.RateLimitDescriptor_Entry{{Key: "backend_name", Value: "default/openai"}}}
			for i := 0; i < len(path); i += 2 {
				d.Entries = append(d.Entries, &rlcommonv3.RateLimitDescriptor_Entry{Key: path[i], Value: path[i+1]})
			}
			r.Descriptors = append(r.Descriptors, d)
		}
		var answer *rlsv3.RateLimitResponse
		testkit.Eventually(t, "the rules have come", func() (there bool) {
			var err error
			answer, err = s.client.ShouldRateLimit(t.Context(), r)
			return err == nil && answer.GetDynamicMetadata().AsMap()["quota_groups"] != nil
		})
		if answer.GetOverallCode() != want {
			t.Errorf("%v, want %v: %v", answer.GetOverallCode(), want, answer)
		}
		return answer.GetDynamicMetadata().AsMap()["quota_groups"]
	}
	tenant := []string{"model_name_override", "large", "rule-0-x-tenant-match-0", "acme"}
	large := []string{"model_name_override", "large", "rule-1-match--1", "rule-1-match--1"}
	small := []string{"model_name_override", "small"}
	ask(rlsv3.RateLimitResponse_OK, tenant, large)
	ask(rlsv3.RateLimitResponse_OVER_LIMIT, tenant, large)
	got := ask(rlsv3.RateLimitResponse_OK, tenant, large, small)
	want := []any{
		map[string]any{
			"entries": []any{"backend_name=default/openai", "model_name_override=large"}, "over": true, "remaining": 0.0,
			"exceeded": []any{"ai-gateway-quota.backend_name_default/openai.model_name_override_large.rule-0-x-tenant-match-0"},
		},
		map[string]any{"entries": []any{"backend_name=default/openai", "model_name_override=small"}, "over": false, "remaining": 99.0, "exceeded": []any{}},
	}
	if diff := cmp.Diff(any(want), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
