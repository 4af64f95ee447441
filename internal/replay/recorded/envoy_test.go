package recorded_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/replay/recorded"
)

func envoy(t *testing.T, text string) *recorded.Mapping {
	t.Helper()
	m, err := recorded.Envoy([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestExample takes everything from the configuration in examples/envoy.
func TestExample(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../examples/envoy/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, s, err := read(t, recorded.Config{Mapping: envoy(t, string(text))}, `
{"start_time":"2026-11-20T10:00:00.000Z","duration":900,"path":"/v1/chat","code":200,"flags":"-","remote_address":"10.0.0.1","user":"ann","tokens_used":"300"}
{"start_time":"2026-11-20T10:00:01.000Z","duration":1,"path":"/v1/chat","code":429,"flags":"RL","remote_address":"10.0.0.1","user":"ann","tokens_used":null}
{"start_time":"2026-11-20T10:00:02.000Z","duration":1,"path":"/","code":200,"flags":"-","remote_address":"10.0.0.1","user":null}
`)
	want := `20 10:00:00.000000+900ms passed edge remote_address=10.0.0.1 user=ann,budget=tokens;hits=0 | always - | passed edge user=ann,budget=tokens;hits=300
20 10:00:01.000000+1ms rejected edge remote_address=10.0.0.1 user=ann,budget=tokens;hits=0
20 10:00:02.000000+1ms passed edge remote_address=10.0.0.1
`
	if d := cmp.Diff(want, got); d != "" || err != nil || s.Unread > 0 {
		t.Errorf("%v, %v (-want +got):\n%s", err, s.First, d)
	}
}

// parts are domain and rate_limits by themselves, of logs in JSON with these fields.
const parts = `
domain: edge
log_format:
  json_format: {t: "%START_TIME%", d: "%DURATION%", p: "%REQ(:PATH)%", u: "%REQ(X-USER)%", a: "%DOWNSTREAM_REMOTE_ADDRESS%", c: "%UPSTREAM_CLUSTER%",
    m: "%DYNAMIC_METADATA(ns:key:sub)%", host: "%REQ(:AUTHORITY)%", sent: "%BYTES_SENT%"}
rate_limits:
`

func TestActions(t *testing.T) {
	t.Parallel()
	const line = `{"t":"2026-11-20T10:00:00Z","d":5,"p":"/a/b?n=1&e=","u":"ann","a":"10.1.2.3:55","c":"app","m":"gold","host":"shop","sent":70}`
	for limits, want := range map[string]string{
		`actions: [{generic_key: {descriptor_value: v}}, {request_headers: {header_name: x-user, descriptor_key: user}}]`:                                      "edge generic_key=v,user=ann",
		`actions: [{generic_key: {descriptor_key: k, descriptor_value: "%REQ(X-USER)%-%%"}}]`:                                                                  "edge k=ann-%",
		`actions: [{remote_address: {}}, {destination_cluster: {}}]`:                                                                                           "edge remote_address=10.1.2.3,destination_cluster=app",
		`actions: [{masked_remote_address: {v4_prefix_mask_len: 16}}]`:                                                                                         "edge masked_remote_address=10.1.0.0/16",
		`actions: [{query_parameters: {query_parameter_name: n, descriptor_key: n}}]`:                                                                          "edge n=1",
		`actions: [{query_parameters: {query_parameter_name: x, descriptor_key: n}}]`:                                                                          "-",
		`actions: [{query_parameters: {query_parameter_name: x, descriptor_key: n, skip_if_absent: true}}, {remote_address: {}}]`:                              "edge remote_address=10.1.2.3",
		`actions: [{metadata: {descriptor_key: plan, metadata_key: {key: ns, path: [{key: key}, {key: sub}]}}}]`:                                               "edge plan=gold",
		`actions: [{header_value_match: {descriptor_value: v, headers: [{name: ":path", string_match: {prefix: /a}}]}}]`:                                       "edge header_match=v",
		`actions: [{header_value_match: {descriptor_value: v, expect_match: false, headers: [{name: x-user, string_match: {exact: ann}}]}}]`:                   "-",
		`actions: [{header_value_match: {descriptor_value: v, headers: [{name: x-user, string_match: {safe_regex: {regex: "a"}}}]}}]`:                          "-",
		`actions: [{header_value_match: {descriptor_value: v, headers: [{name: x-user, present_match: true, invert_match: true}]}}]`:                           "-",
		`actions: [{query_parameter_value_match: {descriptor_value: v, query_parameters: [{name: e, present_match: true}]}}]`:                                  "edge query_match=v",
		`actions: [{remote_address_match: {descriptor_value: v, address_matcher: {ranges: [{address_prefix: 10.0.0.0, prefix_len: 8}]}}}]`:                     "edge remote_address_match=v",
		`actions: [{remote_address_match: {descriptor_value: v, address_matcher: {invert_match: true, ranges: [{address_prefix: 10.0.0.0, prefix_len: 8}]}}}]`: "-",
		`{actions: [{remote_address: {}}], hits_addend: {number: 7, is_negative_hits: true}}`:                                                                  "edge remote_address=10.1.2.3;hits=7;negative",
		`{actions: [{remote_address: {}}], hits_addend: {format: "%BYTES_SENT%"}}`:                                                                             "edge remote_address=10.1.2.3;hits=70",
		`{actions: [{remote_address: {}}], limit: {rate_limit: {requests_per_unit: 5, unit: HOUR}}}`:                                                           "edge remote_address=10.1.2.3;limit=5/0xHOUR",
		"{actions: [{remote_address: {}}]}\n- {actions: [{generic_key: {descriptor_value: end}}], apply_on_stream_done: true}":                                 "edge remote_address=10.1.2.3 | always edge generic_key=end | passed -",
	} {
		if !strings.HasPrefix(limits, "{") {
			limits = "{" + limits + "}"
		}
		got, s, err := read(t, recorded.Config{Mapping: envoy(t, parts+"- "+limits)}, line)
		if want = "20 10:00:00.000000+5ms " + want + "\n"; got != want || err != nil || s.Unread > 0 {
			t.Errorf("%s: %v %v\n got %s want %s", limits, err, s.First, got, want)
		}
	}
}

// TestRoutes chooses virtual hosts and routes, and the limits that Envoy's filter uses for them.
func TestRoutes(t *testing.T) {
	t.Parallel()
	m := envoy(t, `
filters:
- typed_config:
    access_log: [{typed_config: {log_format: {text_format_source: {inline_string: "%START_TIME(%s)% %REQ(:AUTHORITY)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%\n"}}}}]
    http_filters:
    - typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit, domain: edge}
    route_config:
      virtual_hosts:
      - name: shop
        domains: [shop.example, "*.shop.example"]
        rate_limits: [{actions: [{generic_key: {descriptor_value: host}}]}]
        routes:
        - {match: {path: /exact}, route: {cluster: a, rate_limits: [{actions: [{destination_cluster: {}}]}, {stage: 1, actions: [{remote_address: {}}]}]}}
        - {match: {path_separated_prefix: /both}, route: {cluster: a, include_vh_rate_limits: true, rate_limits: [{actions: [{destination_cluster: {}}]}]}}
        - {match: {prefix: /none}, direct_response: {status: 200}}
        - match: {safe_regex: {regex: "/[0-9]+"}}
          route: {cluster: a}
          typed_per_filter_config:
            x: {"@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute, domain: own, rate_limits: [{actions: [{generic_key: {descriptor_value: n}}]}]}
        - {match: {prefix: /}, route: {cluster: a}}
      - {name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: b}}]}
`)
	var log, want strings.Builder
	for _, tt := range []struct{ host, path, want string }{
		{"shop.example", "/exact?x", "edge destination_cluster=a"},
		{"SHOP.example", "/exactly", "edge generic_key=host"},
		{"www.shop.example", "/both/x", "edge destination_cluster=a generic_key=host"},
		{"shop.example", "/bothx", "edge generic_key=host"},
		{"shop.example", "/none", "-"},
		{"shop.example", "/12", "own generic_key=n"},
		{"other.example", "/", "-"},
	} {
		log.WriteString("1795773600 " + tt.host + " " + tt.path + "\n")
		want.WriteString("27 10:00:00.000000 " + tt.want + "\n")
	}
	got, s, err := read(t, recorded.Config{Mapping: m}, log.String())
	if d := cmp.Diff(want.String(), got); d != "" || err != nil || s.Unread > 0 {
		t.Errorf("%v, %v (-want +got):\n%s", err, s.First, d)
	}
}

// TestWrongMappings: what cannot be had from a log is named.
func TestWrongMappings(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "want the configuration of an Envoy", "a: [": "reading YAML", "rate_limits: 1": "want a list",
		"rate_limits: [{actions: [{remote_address: {}}]}]":                                                                                                 "there is no domain",
		"{domain: d, rate_limits: []}":                                                                                                                     "no request would be made",
		"{domain: d, rate_limits: [{actions: []}]}":                                                                                                        "must contain at least 1 item",
		"{domain: d, rate_limits: [{action: []}]}":                                                                                                         `unknown field "action"`,
		"{domain: d, rate_limit: [], rate_limits: []}":                                                                                                     `unknown key "rate_limit"`,
		parts + "- {actions: [{request_headers: {header_name: x-org, descriptor_key: o}}]}":                                                                "the action request_headers of x-org needs %REQ(X-ORG)%, which is not in the JSON of the log",
		parts + "- {actions: [{source_cluster: {}}]}":                                                                                                      "write it as generic_key",
		parts + "- {actions: [{extension: {name: cel}}]}":                                                                                                  "what the extension cel does",
		parts + "- {actions: [{dynamic_metadata: {descriptor_key: k, metadata_key: {key: a, path: [{key: b}]}}}]}":                                         "the action dynamic_metadata of k needs %DYNAMIC_METADATA(a:b)%",
		parts + "- {actions: [{metadata: {descriptor_key: k, source: ROUTE_ENTRY, metadata_key: {key: a, path: [{key: b}]}}}]}":                            "%METADATA(ROUTE:a:b)%",
		parts + "- {actions: [{remote_address: {}}], limit: {dynamic_metadata: {metadata_key: {key: a, path: [{key: b}]}}}}":                               "leave limit out",
		parts + "- {actions: [{generic_key: {descriptor_value: '%REQ(X'}}]}":                                                                               "a percent sign begins an operator",
		"{domain: d, log_format: {text_format: '%START_TIME%%REQ(:PATH)%'}, rate_limits: [{actions: [{remote_address: {}}]}]}":                             "there is no telling where the first one ends",
		"{domain: d, log_format: {text_format: '%REQ(:PATH)% x'}, rate_limits: [{actions: [{remote_address: {}}]}]}":                                       "needs %START_TIME%",
		"{domain: d, routes: [{match: {prefix: /, runtime_fraction: {default_value: {numerator: 1}}}, rate_limits: [{actions: [{remote_address: {}}]}]}]}": "runtime_fraction",
		"http_filters: [{typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit, domain: d}}]":                   "rds",
	} {
		m, err := recorded.Envoy([]byte(text))
		if err == nil {
			_, _, err = read(t, recorded.Config{Mapping: m}, `{"t":"2026-11-20T10:00:00Z"}`)
		}
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), "\u00a0", " "), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	for _, text := range []string{"", "edge", "user=a b=c", "edge user", "edge user=%REQ(X"} {
		if _, err := recorded.Template(text, parse); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	if _, _, err := read(t, recorded.Config{}, "{}"); err == nil || !strings.Contains(err.Error(), "--map") {
		t.Errorf("%v, want that --map is missing", err)
	}
}
