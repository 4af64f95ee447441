package rls

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

func parseBody(tb testing.TB, template string) *Body {
	tb.Helper()
	b, err := ParseBody(template)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// rejectedBy returns the verdict on a request rejected by a rule with this path.
func rejectedBy(path, name string) *limiter.Verdict {
	it := item(engine.FixedWindow)
	it.Multiplier, it.Name = 5, name
	return &limiter.Verdict{Over: true, Statuses: []limiter.Status{{
		Over: true, Outcome: limiter.Rejected, Rule: &descriptors.Rule{Path: path}, RateLimit: it,
		Decision: engine.Decision{ResetAfter: time.Hour, RetryAfter: 40 * time.Second},
	}}}
}

// answered returns the encoded answer, decoded.
func answered(t *testing.T, s *Service, r *limiter.Request, v *limiter.Verdict) *ratelimitv3.RateLimitResponse {
	t.Helper()
	m := new(ratelimitv3.RateLimitResponse)
	if err := proto.Unmarshal(encoded(s, r, v), m); err != nil {
		t.Fatalf("the answer is no message: %v", err)
	}
	return m
}

func headersOf(m *ratelimitv3.RateLimitResponse) (request, response []string) {
	for _, h := range m.GetRequestHeadersToAdd() {
		request = append(request, h.GetKey()+": "+h.GetValue())
	}
	for _, h := range m.GetResponseHeadersToAdd() {
		response = append(response, h.GetKey()+": "+h.GetValue())
	}
	return request, response
}

func TestBody(t *testing.T) {
	const asJSON = "content-type: application/json"
	for _, tt := range []struct {
		name, template, path, want string
		header                     []string
	}{
		{"a text", "Slow down.", "shop.user", "Slow down.", nil},
		{
			"every placeholder", "{{rule}} of {{domain}}: {{limit}} per {{ unit }}, {{remaining}} left, again in {{retry_after}} s", "shop.user",
			"shop.user of shop: 3 per 5 minutes, 0 left, again in 40 s", nil,
		},
		{"JSON", ` {"rule":"{{rule}}","limit":{{limit}},"in":{"retry_after":{{retry_after}}}}`, "shop.user", ` {"rule":"shop.user","limit":3,"in":{"retry_after":40}}`, []string{asJSON}},
		{"JSON without placeholders", `{}`, "shop.user", `{}`, []string{asJSON}},
		{"what is escaped", `{"rule":"{{rule}}"}`, "shop.a_\"\\\n</script>\xff\x00\u2028", `{"rule":"shop.a_\"\\\n\u003c/script\u003e` + "\uFFFD" + `\u0000\u2028"}`, []string{asJSON}},
		{"what is no JSON", "[{{rule}}]", `shop."`, `[shop."]`, nil},
		{"a field at the start", "{{rule}} {", "r", "r {", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := New(nil, Config{Body: parseBody(t, tt.template)})
			m := answered(t, s, &limiter.Request{Domain: []byte("shop")}, rejectedBy(tt.path, ""))
			if got := string(m.GetRawBody()); got != tt.want {
				t.Errorf("body %q, want %q", got, tt.want)
			}
			if _, got := headersOf(m); !cmp.Equal(tt.header, got) {
				t.Errorf("headers %q, want %q", got, tt.header)
			}
			passes := &limiter.Verdict{Statuses: rejectedBy(tt.path, "").Statuses}
			if m := answered(t, s, &limiter.Request{}, passes); m.GetRawBody() != nil || m.GetResponseHeadersToAdd() != nil {
				t.Errorf("a request that passes has %v", m)
			}
		})
	}
}

func TestBadBody(t *testing.T) {
	for template, want := range map[string]string{
		"{{user}}":             "{{user}} is not a field: use {{rule}}, {{domain}}, {{limit}}, {{unit}}, {{remaining}}, {{retry_after}}",
		"{{}}":                 "{{}} is not a field",
		"a {{rule":             "{{rule is not closed",
		`{"rule":{{rule}}}`:    "must be JSON, such as",
		`{"rule":"{{rule}}"`:   "unexpected end",
		`{"limit":{{limit}}0}`: "must be JSON", // 00 if the limit is 0
		`{"limit":0{{limit}}}`: "must be JSON",
		`{"\u00{{rule}}":1}`:   "must be JSON",
		`{rule}`:               "must be JSON",
	} {
		if b, err := ParseBody(template); err == nil || !strings.Contains(err.Error(), want) || b != nil {
			t.Errorf("%s: %v, %v; want an error with %q", template, b, err, want)
		}
	}
}

// TestBodyIsJSONWhateverTheNames checks that the JSON is valid and has the right values, for any bytes in the names of rules and domains.
func TestBodyIsJSONWhateverTheNames(t *testing.T) {
	s := New(nil, Config{Body: parseBody(t, `{"rule":"{{rule}}","of":["{{domain}}",{{limit}}]}`)})
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.SliceOfN(rapid.Byte(), 0, 20)
		path, dom := string(bytes.Draw(t, "path")), bytes.Draw(t, "domain")
		v := rejectedBy(path, "")
		limit := v.Statuses[0].RateLimit
		limit.Limit.Hits = rapid.Uint64Range(0, engine.MaxLimit).Draw(t, "limit")
		limit.RequestsPerUnit = uint32(min(limit.Limit.Hits, math.MaxUint32))
		var m ratelimitv3.RateLimitResponse
		if err := proto.Unmarshal(encoded(s, &limiter.Request{Domain: dom}, v), &m); err != nil {
			t.Fatal(err)
		}
		var got struct {
			Rule string
			Of   []any
		}
		if err := json.Unmarshal(m.GetRawBody(), &got); err != nil {
			t.Fatalf("%q: %v", m.GetRawBody(), err)
		}
		want := []any{valid(string(dom)), float64(limit.Limit.Hits)}
		if got.Rule != valid(path) || !cmp.Equal(want, got.Of) {
			t.Fatalf("%q says %+v", m.GetRawBody(), got)
		}
	})
}

func TestRuleHeader(t *testing.T) {
	admitted := func(path, name string) limiter.Status {
		it := item(engine.FixedWindow)
		it.Name = name
		return limiter.Status{RateLimit: it, Rule: &descriptors.Rule{Path: path}, Remaining: 2, Decision: engine.Decision{Admitted: 1}}
	}
	over := func(path string, quota bool) limiter.Status {
		s := rejectedBy(path, "").Statuses[0]
		s.Quota = quota
		return s
	}
	for _, tt := range []struct {
		name string
		v    limiter.Verdict
		want string // empty if there is none
	}{
		{"the path", limiter.Verdict{Statuses: []limiter.Status{admitted("shop.user", "")}}, "shop.user"},
		{"the name", limiter.Verdict{Statuses: []limiter.Status{admitted("shop.user", "logins")}}, "logins"},
		{"that of the headers", limiter.Verdict{Header: 1, Statuses: []limiter.Status{admitted("a", ""), admitted("b", "")}}, "b"},
		{"that which rejects", limiter.Verdict{Over: true, Header: 1, Statuses: []limiter.Status{admitted("a", ""), over("b", false)}}, "b"},
		{"the first quota that rejects", limiter.Verdict{Over: true, Header: 0, Statuses: []limiter.Status{admitted("a", ""), over("b", true), over("c", true)}}, "b"},
		{"nothing matched", limiter.Verdict{Header: -1, Statuses: []limiter.Status{{}}}, ""},
		{"a limit of the request alone", limiter.Verdict{Statuses: []limiter.Status{{RateLimit: item(engine.FixedWindow), Override: true}}}, ""},
		{"what would break a header", limiter.Verdict{Statuses: []limiter.Status{admitted(" a\r\nb: 5% é\x00 ", "")}}, "%20a%0D%0Ab: 5%25 %C3%A9%00%20"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := New(nil, Config{Headers: Headers{Rule: "X-Rule"}})
			request, response := headersOf(answered(t, s, &limiter.Request{}, &tt.v))
			var want []string
			if tt.want != "" {
				want = []string{"X-Rule: " + tt.want}
			}
			if diff := cmp.Diff(want, request); diff != "" {
				t.Errorf("to upstream (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want, response); diff != "" {
				t.Errorf("to the caller (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRejectionsOnBothWays checks that answers over gRPC and JSON are the same, and that both call the callback for rejections.
func TestRejectionsOnBothWays(t *testing.T) {
	const rules = `
domain: shop
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 0}
- key: free
`
	var told []string
	w := start(t, rules, Config{
		Body:    parseBody(t, `{"rule":"{{rule}}"}`),
		Headers: Headers{Rule: "x-rule"},
		Rejected: func(r *limiter.Request, v *limiter.Verdict) {
			told = append(told, string(r.Domain)+" "+v.Statuses[v.Rejection()].RuleName())
		},
	})
	r := new(ratelimitv3.RateLimitRequest)
	const ask = `{"domain":"shop","descriptors":[{"entries":[{"key":"free","value":"a"}]},{"entries":[{"key":"user","value":"\u0000\"\r\n"}]}]}`
	if err := protojson.Unmarshal([]byte(ask), r); err != nil {
		t.Fatal(err)
	}
	overGRPC := w.ask(r)
	code, _, body := w.service.JSON(t.Context(), []byte(ask))
	overJSON := new(ratelimitv3.RateLimitResponse)
	if err := protojson.Unmarshal(body, overJSON); err != nil || code != 429 {
		t.Fatalf("%d %s: %v", code, body, err)
	}
	if _, _, body := w.service.JSON(t.Context(), []byte(`{"domain":"shop","descriptors":[{"entries":[{"key":"free"}]}]}`)); strings.Contains(string(body), "rawBody") {
		t.Errorf("a request that passes is answered %s", body)
	}
	for _, m := range []*ratelimitv3.RateLimitResponse{overGRPC, overJSON} {
		if got := string(m.GetRawBody()); got != `{"rule":"shop.user"}` {
			t.Errorf("body %q", got)
		}
		request, response := headersOf(m)
		if !cmp.Equal(request, []string{"x-rule: shop.user"}) || !cmp.Equal(response, []string{"x-rule: shop.user", "content-type: application/json"}) {
			t.Errorf("headers %q and %q", request, response)
		}
	}
	if want := []string{"shop shop.user", "shop shop.user"}; !cmp.Equal(want, told) {
		t.Errorf("told of %q, want %q", told, want)
	}
}

// TestRejectionsAllocateNothing checks that disabled features cost nothing, even for a rejection.
func TestRejectionsAllocateNothing(t *testing.T) {
	s, a, v, r := New(nil, Config{}), new(answer), rejectedBy("shop.user", ""), &limiter.Request{Domain: []byte("shop")}
	if n := testing.AllocsPerRun(100, func() { s.encode(a, r, v) }); n != 0 {
		t.Errorf("encoding a rejection allocates %v times, want 0", n)
	}
}

func BenchmarkRejection(b *testing.B) {
	r, v := &limiter.Request{Domain: []byte("shop")}, rejectedBy("shop.user", "")
	for name, c := range map[string]Config{
		"plain":     {},
		"with body": {Body: parseBody(b, `{"rule":"{{rule}}","retry_after":{{retry_after}}}`), Headers: Headers{Rule: "x-rule"}},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			s := New(nil, c)
			for b.Loop() {
				s.encode(new(answer), r, v)
			}
		})
	}
}
