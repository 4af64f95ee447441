package rls

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
)

func TestJSON(t *testing.T) {
	w := start(t, `
domain: shop
descriptors:
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 2}}
`, Config{Headers: Headers{RetryAfter: "Retry-After"}})
	const first = `{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"requestsPerUnit":2,"unit":"HOUR"},"limitRemaining":1,"durationUntilReset":"3600s"}]}`
	const second = `{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"requestsPerUnit":2,"unit":"HOUR"},"durationUntilReset":"3600s"}]}`
	const third = `{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","currentLimit":{"requestsPerUnit":2,"unit":"HOUR"},"durationUntilReset":"3600s"}],` +
		`"responseHeadersToAdd":[{"key":"Retry-After","value":"3600"}]}`
	never := strings.Replace(third, `,"responseHeadersToAdd":[{"key":"Retry-After","value":"3600"}]`, "", 1)
	for _, tt := range [][3]string{
		{`{"domain":"shop","descriptors":[{"entries":[{"key":"a","value":"1"}]}]}`, "200", first},
		{`{"domain":"shop","descriptors":[{"entries":[{"key":"a","value":"1"}]}]}`, "200", second},
		{`{"domain":"shop","descriptors":[{"entries":[{"key":"a","value":"1"}]}]}`, "429", third},
		{`{"domain":"shop","descriptors":[{"entries":[{"key":"zzz","value":"1"}]}]}`, "200", `{"overallCode":"OK","statuses":[{"code":"OK"}]}`},
		{`{"domain":"shop","descriptors":[{"entries":[{"key":"a","value":"2"}],"hits_addend":"18446744073709551615"}]}`, "429", never},
		{`{"domain":"shop","descriptors":[{"entries":[{"key":"zzz","value":"\"\\` + strings.Repeat(`{`, 10_000) + `"}]}]}`, "200", `{"overallCode":"OK","statuses":[{"code":"OK"}]}`},
	} {
		code, contentType, body := w.service.JSON(t.Context(), []byte(tt[0]))
		if fmt.Sprint(code) != tt[1] || contentType != "application/json" {
			t.Errorf("%s: %d %s, want %s", tt[0], code, contentType, tt[1])
		}
		if diff := cmp.Diff(plainJSON(t, []byte(tt[2])), plainJSON(t, body)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt[0], diff)
		}
	}
	if w.calls() != 0 {
		t.Errorf("/json is told of as %d gRPC calls", w.calls())
	}
}

// FuzzJSON checks that any body posted to /json is answered with a decision or an error.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{
		`{"domain":"shop","descriptors":[{"entries":[{"key":"a","value":"1"}]}]}`,
		`{"domain":"shop","descriptors":[{"entries":[{"key":"a"}],"hits_addend":"18446744073709551615","limit":{"unit":"HOUR","requestsPerUnit":3}}]}`,
		`{"domain":"shop","domain":"","descriptors":[{}],"hitsAddend":1e3}`, `{"descriptors":[[[[`, `{"\ud800":null}`, "\xff", "",
	} {
		f.Add([]byte(seed))
	}
	l := limiter.New(memory.New(memory.Config{Now: atNoon}), stats.New(), limiter.Config{})
	l.SetRules(rulefiletest.Load(f, threePerHour))
	service := New(l, Config{DecisionMetadata: true})
	f.Fuzz(func(t *testing.T, body []byte) {
		code, contentType, answer := service.JSON(t.Context(), body)
		var v map[string]any
		switch code {
		case http.StatusOK, http.StatusTooManyRequests:
			if err := json.Unmarshal(answer, &v); err != nil || contentType != typeJSON || v["overallCode"] == nil {
				t.Errorf("%q: %d %s %q, %v", body, code, contentType, answer, err)
			}
		case http.StatusBadRequest:
		default:
			t.Errorf("%q: %d %q", body, code, answer)
		}
	})
}

func plainJSON(t *testing.T, b []byte) (v map[string]any) {
	t.Helper()
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return v
}

// undated removes the time of the decision from metadata, and reports whether it was present. It must be now.
func undated(t interface{ Fatalf(string, ...any) }, m *structpb.Struct) bool {
	v, ok := m.GetFields()["decided_at"]
	delete(m.GetFields(), "decided_at")
	if at, err := time.Parse(time.RFC3339Nano, v.GetStringValue()); ok && (err != nil || time.Since(at).Abs() > time.Minute) {
		t.Fatalf("decided_at: %v", v)
	}
	return ok
}

// TestDecisionMetadata tests the content of DECISION_METADATA, for each algorithm that adds fields.
func TestDecisionMetadata(t *testing.T) {
	w := start(t, `
domain: shop
descriptors:
  - {key: window, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: queue, rate_limit: {unit: second, requests_per_unit: 10, algorithm: leaky_bucket, burst: 5}}
  - {key: bucket, rate_limit: {unit: minute, requests_per_unit: 1, algorithm: token_bucket}}
  - {key: free, rate_limit: {unlimited: true}}
`, Config{DecisionMetadata: true})
	const entries = `"entries":["window=a"],"rule":"shop.window","file":"rules.yaml","line":4`
	r := request("shop", "window=a", "queue=a", "bucket=a", "free=a", "none=a")
	for i, want := range []string{
		`{"domain":"shop","descriptors":[
			{` + entries + `,"remaining":1,"retry_after_ms":0,"reset_after_ms":59500,"wait_ms":0},
			{"entries":["queue=a"],"rule":"shop.queue","file":"rules.yaml","line":5,"remaining":4,"retry_after_ms":0,"reset_after_ms":100,"wait_ms":0},
			{"entries":["bucket=a"],"rule":"shop.bucket","file":"rules.yaml","line":6,"remaining":0,"retry_after_ms":0,"reset_after_ms":60000,"wait_ms":0},
			{"entries":["free=a"],"rule":"shop.free","file":"rules.yaml","line":7},
			{"entries":["none=a"]}]}`,
		`{"domain":"shop","descriptors":[
			{` + entries + `,"remaining":0,"retry_after_ms":0,"reset_after_ms":59500,"wait_ms":0},
			{"entries":["queue=a"],"rule":"shop.queue","file":"rules.yaml","line":5,"remaining":3,"retry_after_ms":0,"reset_after_ms":200,"wait_ms":100},
			{"entries":["bucket=a"],"rule":"shop.bucket","file":"rules.yaml","line":6,"remaining":0,"retry_after_ms":60000,"reset_after_ms":60000,"wait_ms":0},
			{"entries":["free=a"],"rule":"shop.free","file":"rules.yaml","line":7},
			{"entries":["none=a"]}]}`,
	} {
		metadata := w.ask(r).GetDynamicMetadata()
		if !undated(t, metadata) {
			t.Errorf("answer %d has no decided_at", i+1)
		}
		got, err := protojson.Marshal(metadata)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(plainJSON(t, []byte(want)), plainJSON(t, got)); diff != "" {
			t.Errorf("answer %d (-want +got):\n%s", i+1, diff)
		}
	}
}

// TestQuotaGroupsMetadata tests the fields of groups for routing, with only RESPONSE_DYNAMIC_METADATA.
func TestQuotaGroupsMetadata(t *testing.T) {
	w := start(t, `
domain: ai
quota_group_by: [model]
descriptors:
  - {key: model, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 9}}
  - key: tenant
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 5, name: budget}
    descriptors:
      - {key: model, value: big, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1, name: big}}
`, Config{DynamicMetadata: true})
	r := request("ai", "model=big", "tenant=t,model=big", "model=small", "tenant=t")
	var got any
	for range 2 {
		got = w.ask(r).GetDynamicMetadata().AsMap()["quota_groups"]
	}
	want := []any{
		map[string]any{"entries": []any{"model=big"}, "over": true, "exceeded": []any{"big"}, "remaining": 0.0},
		map[string]any{"entries": []any{"model=small"}, "over": false, "exceeded": []any{}, "remaining": 3.0},
	}
	if diff := cmp.Diff(any(want), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for range 4 { // the tenant's budget belongs to all groups
		got = w.ask(r).GetDynamicMetadata().AsMap()["quota_groups"]
	}
	small := map[string]any{"entries": []any{"model=small"}, "over": true, "exceeded": []any{"budget"}, "remaining": 0.0}
	if diff := cmp.Diff(any(small), got.([]any)[1]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := w.ask(request("ai", "model=other")).GetDynamicMetadata().AsMap()["quota_groups"]; len(got.([]any)) != 1 {
		t.Errorf("%v", got)
	}
}

// TestRuleMetadata compares with recorded answers of the reference.
func TestRuleMetadata(t *testing.T) {
	w := start(t, `
domain: shop
descriptors:
  - key: q1
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
    metadata: {cluster: {name: one}}
  - key: q2
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 2}
    metadata: {other: {name: two, zone: z}, extra: [1, a]}
  - key: r
    rate_limit: {unit: hour, requests_per_unit: 4}
  - key: u
    rate_limit: {unlimited: true}
    metadata: {unlimited: true}
`, Config{DynamicMetadata: true})
	both := request("shop", "q1=y", "q2=y", "u=y")
	fields := func() *structpb.Value {
		return structpb.NewStructValue(w.ask(both).GetDynamicMetadata()).GetStructValue().GetFields()["metadata"]
	}
	for i, want := range []any{
		map[string]any{"cluster": map[string]any{"name": "one"}, "other": map[string]any{"name": "two", "zone": "z"}, "extra": []any{1.0, "a"}},
		map[string]any{"other": map[string]any{"name": "two", "zone": "z"}, "extra": []any{1.0, "a"}},
		nil, // both are over
	} {
		if diff := cmp.Diff(want, fields().AsInterface()); diff != "" {
			t.Errorf("answer %d (-want +got):\n%s", i+1, diff)
		}
	}
	overridden := override("q2=z", 3, 3)
	got := w.ask(overridden).GetDynamicMetadata().AsMap()
	want := map[string]any{"domain": "shop", "descriptors": []any{map[string]any{"entries": []any{"q2=z"}, "limit": "requests_per_unit:3 unit:HOUR"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("with an override (-want +got):\n%s", diff)
	}
}
