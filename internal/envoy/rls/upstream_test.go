package rls

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// service returns a Service with these rules and counters in memory, at noon.
func service(t *testing.T, rules string, l limiter.Config, c Config) *Service {
	t.Helper()
	limits := limiter.New(memory.New(memory.Config{Now: atNoon}), stats.New(), l)
	limits.SetRules(rulefiletest.Load(t, rules))
	return New(limits, c)
}

// TestNeverPasses checks, for each algorithm, that a request that can never be admitted gets no time for a retry. duration_until_reset,
// from which proxies derive that time, is then a window or the rest of one.
func TestNeverPasses(t *testing.T) {
	t.Parallel()
	c := Config{
		Headers:          Headers{Enabled: true, RetryAfter: "Retry-After"},
		DecisionMetadata: true,
		Body:             parseBody(t, `{"in":{{retry_after}},"text":"in \"{{retry_after}}\" s, \\","again":{{retry_after}}}`),
	}
	for a := range engine.Algorithms() {
		rest := 3600 * time.Second
		if a == engine.FixedWindow { // the window began half a second ago
			rest = rest - 500*time.Millisecond
		}
		for _, tt := range []struct {
			limit uint32
			hits  uint64
			used  uint64 // before the request
		}{{10, 11, 0}, {10, 11, 10}, {0, 1, 0}, {0, 0, 1}, {10, 1 << 60, 0}} {
			s := service(t, fmt.Sprintf("domain: shop\ndescriptors:\n- {key: k, rate_limit: {unit: hour, requests_per_unit: %d, algorithm: %s}}", tt.limit, a), limiter.Config{}, c)
			r := request("shop", "k")
			if tt.used > 0 {
				r.Descriptors[0].HitsAddend = wrapperspb.UInt64(tt.used)
				inProcess(t, s, r)
			}
			r.Descriptors[0].HitsAddend = wrapperspb.UInt64(tt.hits)
			m := inProcess(t, s, r)
			fields := m.GetDynamicMetadata().GetFields()["descriptors"].GetListValue().GetValues()[0].GetStructValue().GetFields()
			wait := m.GetStatuses()[0].GetDurationUntilReset().AsDuration()
			if m.GetOverallCode() != ratelimitv3.RateLimitResponse_OVER_LIMIT || wait != (rest+500*time.Millisecond).Truncate(time.Second) || fields["retry_after_ms"] != nil {
				t.Errorf("%v, %+v: %v", a, tt, m)
			}
			var body struct {
				In, Again *int
				Text      string
			}
			if err := json.Unmarshal(m.GetRawBody(), &body); err != nil || body.In != nil || body.Again != nil || body.Text != `in "" s, \` {
				t.Errorf("%v, %+v: the body is %s, %v", a, tt, m.GetRawBody(), err)
			}
			for _, h := range m.GetResponseHeadersToAdd() {
				if h.GetKey() == "Retry-After" || h.GetKey() == "RateLimit-Reset" && h.GetValue() != "3600" {
					t.Errorf("%v, %+v: the header %v", a, tt, h)
				}
			}
		}
	}
}

// TestNeverOfSeveral checks that a limit of a list that never admits the request is the strictest, however long another one rejects.
func TestNeverOfSeveral(t *testing.T) {
	t.Parallel()
	const rules = "domain: shop\ndescriptors:\n- {key: k, rate_limits: [{unit: day, requests_per_unit: 20}, {unit: minute, requests_per_unit: 5, algorithm: token_bucket}]}"
	s := service(t, rules, limiter.Config{}, Config{Headers: Headers{RetryAfter: "Retry-After"}})
	r := request("shop", "k")
	for range 4 {
		r.Descriptors[0].HitsAddend = wrapperspb.UInt64(5)
		inProcess(t, s, r)
	}
	r.Descriptors[0].HitsAddend = wrapperspb.UInt64(6)
	m := inProcess(t, s, r)
	if st := m.GetStatuses()[0]; st.GetCurrentLimit().GetRequestsPerUnit() != 5 || st.GetDurationUntilReset().GetSeconds() != 60 || len(m.GetResponseHeadersToAdd()) > 0 {
		t.Errorf("got %v", m)
	}
}

const upstreamRules = `
domain: shop
descriptors:
- {key: wide, rate_limit: {unit: hour, requests_per_unit: 9}}
- {key: tight, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: tried, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1, name: "per 100 % é"}}
- {key: tested, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 0}}
- {key: bucket, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: other, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 9}}
`

// TestUpstreamHeaders checks that headers of upstream requests describe the same limit as those of responses, whether the latter are
// enabled or not, in any format and for any verdict, and that one names the rule that is over in shadow mode.
func TestUpstreamHeaders(t *testing.T) {
	t.Parallel()
	var on, named Headers
	on.Request.Enabled = true
	named.Request.Enabled, named.Request.Limit, named.Request.Remaining, named.Request.Reset = true, "X-L", "X-R", "X-S"
	both, draft := on, on
	both.Enabled, draft.Enabled, draft.Draft = true, true, true
	shadow := Headers{Shadow: "X-Shadow"}
	for _, tt := range []struct {
		name              string
		headers           Headers
		limiter           limiter.Config
		keys              []string
		request, response []string // in the second answer
	}{
		{name: "off", headers: Headers{}, keys: []string{"wide"}},
		{name: "within", headers: on, keys: []string{"wide"}, request: []string{"RateLimit-Limit: 9", "RateLimit-Remaining: 7", "RateLimit-Reset: 3600"}},
		{name: "over", headers: on, keys: []string{"wide", "tight"}, request: []string{"RateLimit-Limit: 1", "RateLimit-Remaining: 0", "RateLimit-Reset: 60"}},
		{name: "by other names", headers: named, keys: []string{"wide"}, request: []string{"X-L: 9", "X-R: 7", "X-S: 3600"}},
		{name: "no limit", headers: on, keys: []string{"none"}},
		{
			name: "beside those of the response", headers: both, keys: []string{"tight"},
			request:  []string{"RateLimit-Limit: 1", "RateLimit-Remaining: 0", "RateLimit-Reset: 60"},
			response: []string{"RateLimit-Limit: 1", "RateLimit-Remaining: 0", "RateLimit-Reset: 60"},
		},
		{
			name: "beside the draft", headers: draft, keys: []string{"wide"},
			request:  []string{"RateLimit-Limit: 9", "RateLimit-Remaining: 7", "RateLimit-Reset: 3600"},
			response: []string{`RateLimit-Policy: "shop.wide";q=9;w=3600`, `RateLimit: "shop.wide";r=7;t=3600`},
		},
		{name: "a shadow rule", headers: shadow, keys: []string{"wide", "tried"}, request: []string{"X-Shadow: per 100 %25 %C3%A9"}},
		{name: "the first of two shadow rules", headers: shadow, keys: []string{"tested", "tried"}, request: []string{"X-Shadow: shop.tested"}},
		{name: "a shadow rule beside a rejection", headers: shadow, keys: []string{"tight", "tested"}, request: []string{"X-Shadow: shop.tested"}},
		{name: "no shadow rule", headers: shadow, keys: []string{"wide", "tight"}},
		{name: "a quota that is over", headers: shadow, keys: []string{"bucket", "other"}},
		{
			name: "shadow mode of the server", headers: shadow, limiter: limiter.Config{Shadow: true},
			keys: []string{"wide", "tight"}, request: []string{"X-Shadow: shop.tight"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := service(t, upstreamRules, tt.limiter, Config{Headers: tt.headers})
			inProcess(t, s, request("shop", tt.keys...))
			request, response := headersOf(inProcess(t, s, request("shop", tt.keys...)))
			if !cmp.Equal(request, tt.request) || !cmp.Equal(response, tt.response) {
				t.Errorf("the upstream gets %q, want %q; the caller gets %q, want %q", request, tt.request, response, tt.response)
			}
		})
	}
}
