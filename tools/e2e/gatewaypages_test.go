package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	rlcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// inYears is a text with rules whose windows do not end while a test runs.
func inYears(rules string) string {
	return strings.NewReplacer("unit: minute", "unit: year", "unit: day", "unit: year").Replace(rules)
}

// TestToolCalls: with the limits and rules of docs/llm-gateways.md, each tool has a limit, and other methods of MCP have none.
func TestToolCalls(t *testing.T) {
	t.Parallel()
	withEnvoy(t, func(w *world) {
		s := w.serve(inYears(blockOf(w, "llm-gateways.md", "```yaml tool-rules")), "BACKEND_TYPE=memory")
		p := w.proxy(setup{example: "envoy", timeout: patient, change: func(c *config) {
			limits := new(ratelimitv3.RateLimitPerRoute)
			must(w, envoytest.Decode(blockOf(w, "llm-gateways.md", "```yaml tools"), limits))
			for _, route := range c.manager.GetRouteConfig().GetVirtualHosts()[0].GetRoutes() {
				route.TypedPerFilterConfig[envoytest.FilterName] = w.pack(limits)
			}
		}}, w.upstream(hello), s)
		for _, x := range []struct {
			method, tool string
			want         int // of forty requests
		}{{"tools/call", "search", 30}, {"tools/call", "send_email", 5}, {"tools/list", "-", 40}} {
			passed := 0
			for range 40 {
				header := http.Header{"X-User": {"alice"}, "Mcp-Method": {x.method}, "Mcp-Name": {x.tool}}
				if w.get(p.base()+"/", header).status == http.StatusOK {
					passed++
				}
			}
			w.got(passed == x.want, "%s %s: %d of 40 pass", x.method, x.tool, passed)
		}
	})
}

// TestAgentgateway: with the rule of docs/llm-gateways.md, the two calls that agentgateway makes for a request reserve and settle.
func TestAgentgateway(t *testing.T) {
	t.Parallel()
	withEnvoy(t, func(w *world) {
		s := w.serve(inYears(blockOf(w, "llm-gateways.md", "```yaml agentgateway")), "BACKEND_TYPE=memory")
		client := rlsv3.NewRateLimitServiceClient(s.conn)
		call := func(stream int, hits uint64) bool {
			answer, err := client.ShouldRateLimit(w.Context(), &rlsv3.RateLimitRequest{
				Domain: "agentgateway", Descriptors: []*rlcommonv3.RateLimitDescriptor{{
					Entries:    []*rlcommonv3.RateLimitDescriptor_Entry{{Key: "user", Value: "alice"}, {Key: "stream", Value: fmt.Sprint("uuid-", stream)}},
					HitsAddend: wrapperspb.UInt64(hits),
				}},
			})
			testkit.Check(w, err)
			return answer.GetOverallCode() == rlsv3.RateLimitResponse_OK
		}
		passed := 0
		for i := range 60 {
			if call(i, 0) {
				passed++
			}
		}
		w.got(passed == 50, "%d estimates of 2000 fit into 100000", passed)
		call(0, 100)
		w.got(!call(100, 0), "1900 are left, which is no estimate")
		call(1, 0) // an answer that took nothing
		w.got(call(101, 0) && !call(102, 0), "3900 are one")
	})
}
