package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	contentv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/content_parsers/json/v3"
	j2mv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/json_to_metadata/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	ssev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/sse_to_metadata/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
	"google.golang.org/protobuf/proto"
)

// filterOf reads a filter of docs/llm-budgets.md.
func filterOf(w *world, fence string) *hcmv3.HttpFilter {
	w.Helper()
	f := new(hcmv3.HttpFilter)
	testkit.Check(w, envoytest.Decode(blockOf(w, "llm-budgets.md", "```yaml "+fence), f))
	return f
}

// readsPrices has the filters of examples/envoy-llm, with the page's filter for streams, read both kinds of tokens.
func readsPrices(w *world, c *config) {
	w.Helper()
	usage, filters := filterOf(w, "usage"), c.manager.GetHttpFilters()
	sse, parser := new(ssev3.SseToMetadata), new(contentv3.JsonContentParser)
	must(w, usage.GetTypedConfig().UnmarshalTo(sse))
	must(w, sse.GetResponseRules().GetContentParser().GetTypedConfig().UnmarshalTo(parser))
	json := new(j2mv3.JsonToMetadata)
	must(w, filters[2].GetTypedConfig().UnmarshalTo(json))
	for _, key := range []string{"prompt_tokens", "completion_tokens"} {
		parser.Rules = append(parser.Rules, &contentv3.JsonContentParser_RuleConfig{Rule: ruleFor(key, parser.GetRules()[0].GetRule())})
		json.ResponseRules.Rules = append(json.ResponseRules.Rules, ruleFor(key, json.GetResponseRules().GetRules()[0]))
	}
	sse.ResponseRules.ContentParser.TypedConfig = w.pack(parser)
	usage.ConfigType = &hcmv3.HttpFilter_TypedConfig{TypedConfig: w.pack(sse)}
	filters[1] = usage
	filters[2].ConfigType = &hcmv3.HttpFilter_TypedConfig{TypedConfig: w.pack(json)}
}

// ruleFor is a rule that reads another key of the usage.
func ruleFor(key string, rule *j2mv3.JsonToMetadata_Rule) *j2mv3.JsonToMetadata_Rule {
	rule = proto.CloneOf(rule)
	rule.GetSelectors()[1].Selector = &j2mv3.JsonToMetadata_Selector_Key{Key: key}
	rule.OnPresent.Key = key
	return rule
}

func must(w *world, err error) {
	w.Helper()
	testkit.Check(w, err)
}

// priced answers with 100 tokens of input and 300 of output, or with an error.
func priced(out http.ResponseWriter, r *http.Request) {
	const usage = `{"usage": {"prompt_tokens": 100, "completion_tokens": 300, "total_tokens": 400}}`
	switch r.URL.Path {
	case "/v1/chat/json":
		out.Header().Set("content-type", "application/json")
		fmt.Fprint(out, usage)
	case "/v1/chat/error":
		out.WriteHeader(http.StatusInternalServerError)
	default:
		out.Header().Set("content-type", "text/event-stream")
		fmt.Fprint(out, "data: {\"choices\": []}\n\n")
		_ = http.NewResponseController(out).Flush() // a caller who has gone is seen below
		fmt.Fprintf(out, "data: %s\n\ndata: [DONE]\n\n", usage)
	}
}

// TestWeightsOfLLM: with the filters of docs/llm-budgets.md, what is settled is the weighted sum of input and output.
func TestWeightsOfLLM(t *testing.T) {
	t.Parallel()
	withEnvoy(t, func(w *world) {
		s := w.serveExample("envoy-llm")
		p := w.proxy(setup{example: "envoy-llm", timeout: patient, change: func(c *config) {
			readsPrices(w, c)
			c.manager.HttpFilters = slices.Insert(c.manager.GetHttpFilters(), 1, filterOf(w, "weights"))
		}}, w.upstream(priced), s)
		left := 10_000
		for _, x := range []struct {
			path string
			cost int
		}{{"stream", 1300}, {"json", 1300}, {"error", 0}, {"stream", 1300}} {
			w.ask(p, "/v1/chat/"+x.path, "alice")
			left -= x.cost
			settles(w, s, left, x.path)
		}
	})
}

// TestBudgetsOfLLM: with the limits and rules of docs/llm-budgets.md, input and output have a budget each, and a request passes if both have
// something left.
func TestBudgetsOfLLM(t *testing.T) {
	t.Parallel()
	withEnvoy(t, func(w *world) {
		rules := strings.ReplaceAll(blockOf(w, "llm-budgets.md", "```yaml rules"), ": 10000", ": 500")
		s := w.serve(rules, "BACKEND_TYPE=memory", "ADMIN=true")
		p := w.proxy(setup{example: "envoy-llm", timeout: patient, change: func(c *config) {
			readsPrices(w, c)
			limits := new(ratelimitv3.RateLimitPerRoute)
			input := blockOf(w, "llm-budgets.md", "```yaml budgets")
			for _, text := range []string{input, strings.ReplaceAll(input, "prompt", "completion")} {
				both := new(ratelimitv3.RateLimitPerRoute)
				must(w, envoytest.Decode(text, both))
				limits.RateLimits = append(limits.RateLimits, both.GetRateLimits()...)
			}
			route := c.manager.GetRouteConfig().GetVirtualHosts()[0].GetRoutes()[0]
			route.TypedPerFilterConfig["envoy.filters.http.ratelimit"] = w.pack(limits)
		}}, w.upstream(priced), s)
		for i, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
			a := w.ask(p, "/v1/chat", "alice")
			w.got(a.status == want, "call %d: %d", i+1, a.status)
			input, output := 40_000-100*min(i+1, 2), max(500-300*(i+1), 0)
			testkit.Eventually(w, "the charges are made", func() bool {
				return s.leftOf(w, "llm", "alice", "prompt_tokens") == input && s.leftOf(w, "llm", "alice", "completion_tokens") == output
			})
		}
	})
}
