package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"google.golang.org/protobuf/encoding/protojson"
)

// limits returns cases about Envoy's calls and its handling of answers.
func limits() []example {
	return []example{
		{name: "where rate_limits go", want: "each line of docs/where-rate-limits-go.md", play: places},
		{name: "stage and disable_key in typed_per_filter_config, and in the filter", want: "Envoy rejects the file", play: rejectedFields},
		{name: "what Envoy does not ask about", want: "no counter of the filter grows; with skip_if_absent it asks", play: unasked},
		{name: "hits_addend of a format", want: "a number up to 1,000,000,000, cut to whole hits; otherwise the descriptor is left out", play: costs},
		{name: "limits from metadata", want: "units in upper case, and numbers cut to 32 bits; otherwise the limit of the rule", play: overrides},
		{name: "addresses by x-forwarded-for", want: "IPv6 that maps IPv4 has the network ::/64; what has a port is not taken", play: addresses},
		{name: "what callers see", want: "headers as docs/envoy.md and docs/cookbook.md say", play: headers},
		{
			name: "descriptors and entries", want: "1,024 descriptors of 256 entries are decided; beyond, the call is an error, and the log says why",
			play: sizes,
		},
	}
}

// comesOfTwo are the trials of the table "If there are two lists", by row text.
var comesOfTwo = []trial{
	{
		name:      "virtual host, `rate_limits` | route, `rate_limits` | the route's",
		plainHost: "rate_limits: [{$host}]", plainRoute: "rate_limits: [{$route}]", asks: "route 1",
	},
	{
		name:      "virtual host, `rate_limits` | route, `rate_limits`, and `vh_rate_limits: INCLUDE` | both",
		plainHost: "rate_limits: [{$host}]", plainRoute: "rate_limits: [{$route}]", route: "vh_rate_limits: INCLUDE", asks: "host 1, route 1",
	},
	{
		name:      "virtual host, `rate_limits` | route, `rate_limits: []` | the virtual host's: an empty list counts as none",
		plainHost: "rate_limits: [{$host}]", plainRoute: "rate_limits: []", asks: "host 1",
	},
	{
		name:      "virtual host, `rate_limits` | route without a list, and `vh_rate_limits: IGNORE` | none",
		plainHost: "rate_limits: [{$host}]", route: "vh_rate_limits: IGNORE",
	},
	{
		name: "virtual host, `typed_per_filter_config` | route, `typed_per_filter_config` | the route's. `vh_rate_limits: INCLUDE` and `include_vh_rate_limits: true` change nothing",
		host: "rate_limits: [{$host}]", route: "vh_rate_limits: INCLUDE, rate_limits: [{$route}]", plainRoute: "include_vh_rate_limits: true", asks: "route 1",
	},
	{
		name: "virtual host, `typed_per_filter_config` | route, `typed_per_filter_config` with `rate_limits: []`, or with only a `domain` | none, unless row 2, 3 or 4 has a list",
		host: "rate_limits: [{$host}]", route: "rate_limits: []",
	},
	{name: "with a `domain` alone", host: "rate_limits: [{$host}]", route: "domain: edge"},
	{
		name: "virtual host or route, `typed_per_filter_config` | route, `rate_limits` | the list in `typed_per_filter_config`, even the virtual host's",
		host: "rate_limits: [{$host}]", plainRoute: "rate_limits: [{$route}]", asks: "host 1",
	},
	{name: "route instead of virtual host", route: "rate_limits: [{$cluster}]", plainRoute: "rate_limits: [{$route}]", asks: "cluster 1"},
	{
		name:  "route, `typed_per_filter_config` with `rate_limits: []` | route, `rate_limits` | the second",
		route: "rate_limits: []", plainRoute: "rate_limits: [{$route}]", asks: "route 1",
	},
	{
		name:  "route, `typed_per_filter_config` | weighted cluster, `typed_per_filter_config` | the weighted cluster's",
		route: "rate_limits: [{$route}]", cluster: "rate_limits: [{$cluster}]", asks: "cluster 1",
	},
	{
		name: "route configuration, `typed_per_filter_config` | virtual host, `typed_per_filter_config` | the virtual host's",
		conf: "rate_limits: [{$conf}]", host: "rate_limits: [{$host}]", asks: "host 1",
	},
	{
		name:   "filter | virtual host or route, `rate_limits` | the filter's",
		filter: "rate_limits: [{$filter}]", plainHost: "rate_limits: [{$host}]", plainRoute: "rate_limits: [{$route}]", asks: "filter 1",
	},
	{
		name:   "filter | virtual host or route, `typed_per_filter_config` | the second",
		filter: "rate_limits: [{$filter}]", host: "rate_limits: [{$host}]", asks: "host 1",
	},
	{name: "route instead of virtual host, before the filter", filter: "rate_limits: [{$filter}]", route: "rate_limits: [{$route}]", asks: "route 1"},
	{
		name:   "filter | route, `typed_per_filter_config` with `rate_limits: []` | the filter's: you can't exempt a route this way",
		filter: "rate_limits: [{$filter}]", route: "rate_limits: []", asks: "filter 1",
	},
}

// switchedOff is the configuration that exempts a route.
const switchedOff = `"@type": type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true`

// places runs the tables of the page, and then the statements next to them.
func places(w *world) {
	text, err := os.ReadFile("../../docs/where-rate-limits-go.md")
	testkit.Check(w, err)
	_, rows, _ := strings.Cut(string(text), "| here | and here | Envoy uses |\n| --- | --- | --- |\n")
	rows, _, _ = strings.Cut(rows, "\n\n")
	played := ""
	for _, x := range comesOfTwo {
		if strings.Contains(x.name, " | ") {
			played += "\n| " + x.name + " |"
		}
	}
	if strings.TrimSpace(rows) != strings.TrimSpace(played) {
		w.Errorf("the page has the rows\n%s\n\nand these are played:%s", rows, played)
	}
	trials := append([]trial{
		{name: "the route configuration alone", conf: "rate_limits: [{$conf}]", asks: "conf 1"},
		{name: "the domain of a route", route: "domain: other, rate_limits: [{$route}]", count: "ok"},
		{name: "the domain of a virtual host, lost", host: "domain: other", route: "rate_limits: [{$route}]", asks: "route 1"},
		{name: "stage, as the filter's", filter: "stage: 1", plainRoute: "rate_limits: [{stage: 1, $route}, {$host}]", asks: "route 1"},
		{name: "disable_key", plainRoute: "rate_limits: [{disable_key: peak, $host}, {disable_key: other, $route}]", asks: "route 1"},
		{name: "hits_addend 0", route: "rate_limits: [{$route, hits_addend: {number: 0}}]", count: "ok"},
		{name: "switched off, the filter's", filter: "rate_limits: [{$filter}]", route: switchedOff},
		{name: "switched off, the virtual host's", plainHost: "rate_limits: [{$host}]", route: switchedOff},
		{name: "switched off, the virtual host's in typed_per_filter_config", host: "rate_limits: [{$host}]", route: switchedOff},
	}, comesOfTwo...)
	for _, policy := range []string{"OVERRIDE_POLICY", "INCLUDE_POLICY", "IGNORE_POLICY"} {
		option := "override_option: " + policy
		trials = append(trials,
			trial{name: policy + ", filter", filter: "rate_limits: [{$filter}]", route: option + ", rate_limits: [{$route}]", asks: "route 1"},
			trial{name: policy + ", lists", plainHost: "rate_limits: [{$host}]", plainRoute: "rate_limits: [{$route}]", route: option, asks: "route 1"},
			trial{name: policy + ", virtual host", host: "rate_limits: [{$host}]", route: option + ", rate_limits: [{$route}]", asks: "route 1"},
		)
	}
	const five, late = "hits_addend: {number: 5}", `apply_on_stream_done: true, hits_addend: {format: "%RESP(x-cost)%"}`
	of := func(name, hits string) string {
		if hits == "" {
			return ""
		}
		return name + " " + hits
	}
	charge := "7"
	if !since(sinceAnswersRead) {
		charge = ""
	}
	for _, how := range []struct{ fields, typed, plain, count string }{{five, "5", "1", ""}, {late, charge, "1", none}} {
		list := func(name string) string { return "rate_limits: [{$" + name + ", " + how.fields + "}]" }
		trials = append(trials,
			trial{name: "filter, " + how.fields, filter: list("filter"), asks: of("filter", how.typed), count: how.count},
			trial{name: "route configuration, " + how.fields, conf: list("conf"), asks: of("conf", how.typed), count: how.count},
			trial{name: "virtual host in typed_per_filter_config, " + how.fields, host: list("host"), asks: of("host", how.typed), count: how.count},
			trial{name: "route in typed_per_filter_config, " + how.fields, route: list("route"), asks: of("route", how.typed), count: how.count},
			trial{name: "weighted cluster, " + how.fields, cluster: list("cluster"), asks: of("cluster", how.typed), count: how.count},
			trial{name: "virtual host, " + how.fields, plainHost: list("host"), asks: "host " + how.plain, count: how.count},
			trial{name: "route, " + how.fields, plainRoute: list("route"), asks: "route " + how.plain, count: how.count},
		)
	}
	w.try(trials)
}

// rejectedFields are fields that Envoy does not accept in every place.
func rejectedFields(w *world) {
	rejected := 0
	for _, field := range []string{"stage: 1", "disable_key: peak"} {
		for _, x := range []trial{{route: "rate_limits: [{$route, " + field + "}]"}, {filter: "rate_limits: [{$filter, " + field + "}]"}} {
			text, err := protojson.Marshal(w.bootstrap(on(w, []trial{x}), w.upstream(hello), nil))
			file := filepath.Join(w.TempDir(), "envoy.json")
			if err == nil {
				err = os.WriteFile(file, text, 0o600)
			}
			testkit.Check(w, err)
			out, err := w.validate(file, filepath.Dir(file))
			if err != nil && strings.Contains(string(out), "'stage' field and 'disable_key' field are not supported") {
				rejected++
				continue
			}
			w.Logf("%s: %v\n%s", field, err, out)
		}
	}
	w.got(rejected == 4, "%d of 4 are rejected", rejected)
}

// unasked are requests without a limit. See docs/troubleshooting.md.
func unasked(w *world) {
	const list = "rate_limits: [{$route}]"
	w.try([]trial{
		{name: "direct_response", instead: "direct_response: {status: 200}", filter: "rate_limits: [{$filter}]", route: list, want: "^200"},
		{name: "redirect", instead: "redirect: {path_redirect: /x}", filter: "rate_limits: [{$filter}]", route: list, want: "^301"},
		{name: "the key is not the filter's name", key: "ratelimit", route: list},
		{name: "a header that is not there", route: "rate_limits: [{actions: [{%route}, {request_headers: {header_name: x-user, descriptor_key: user}}]}]"},
		{
			name: "the same with skip_if_absent", asks: "route 1",
			route: "rate_limits: [{actions: [{%route}, {request_headers: {header_name: x-user, descriptor_key: user, skip_if_absent: true}}]}]",
		},
		{name: "another stage than the filter's", filter: "stage: 1", plainRoute: list},
		{name: "filter_enabled: 0 %", filter: "filter_enabled: {default_value: {numerator: 0}, runtime_key: trials.enabled}", route: list},
		{name: "request_type: internal", filter: "request_type: internal", route: list, headers: "x-forwarded-for: 203.0.113.7"},
		{name: "all when the stream is done", route: "rate_limits: [{$route, apply_on_stream_done: true}]", asks: "route 1", count: none},
	})
}

func costs(w *world) {
	const list = `rate_limits: [{$route, hits_addend: {format: "%REQ(x-cost)%"}}]`
	var trials []trial
	for _, c := range []struct{ cost, asks string }{
		{"2.7", "route 2"},
		{"1e3", "route 1000"},
		{"1000000000", "route 1000000000"},
		{"1000000001", ""},
		{"-3", ""},
		{"abc", ""},
		{"inf", ""},
		{"", ""},
	} {
		trials = append(trials, trial{name: "`" + c.cost + "`", route: list, headers: "x-cost: " + c.cost, asks: c.asks})
	}
	trials = append(trials, trial{name: "nan, the second time", route: list, headers: "x-cost: nan", times: 2, want: "^429", asks: "route 2000000000"})
	p, _ := w.try(trials)
	w.got(strings.Contains(p.process.Output(), "Invalid hits_addend"), "Envoy logs `Invalid hits_addend`")
}

func overrides(w *world) {
	const limit = "limit: {dynamic_metadata: {metadata_key: {key: trial, path: [{key: limit}]}}}"
	const own = "`100000, 100000;w=86400"
	var trials []trial
	for _, c := range []struct{ unit, number, want string }{
		{"HOUR", "7", "`7, 7;w=3600"},
		{"MONTH", "7", "`7, 7;w=2592000"},
		{"hour", "7", own},
		{"WEEK", "7", own},
		{"HOUR", `"7"`, own},
		{"HOUR", "2.9", "`2, 2;w=3600"},
		{"HOUR", "-5", "`4294967291, 4294967291;w=3600"},
		{"HOUR", "5000000000", "`705032704, 705032704;w=3600"},
	} {
		trials = append(trials, trial{
			name: c.number + " " + c.unit, want: "x-ratelimit-limit: " + c.want, asks: "route 1", route: "rate_limits: [{$route, " + limit + "}]",
			before: `- {name: metadata, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config, metadata: [` +
				"{metadata_namespace: trial, value: {limit: {requests_per_unit: " + c.number + ", unit: " + c.unit + "}}}]}}",
		})
	}
	w.try(trials)
}

func addresses(w *world) {
	var trials []trial
	for _, c := range []struct{ from, network, address string }{
		{"203.0.113.7", "203.0.113.7/32", "203.0.113.7"},
		{"2001:db8::1", "2001:db8::/64", "2001:db8::1"},
		{"::ffff:1.2.3.4", "::/64", "::ffff:1.2.3.4"},
		{"203.0.113.7:5555", "127.0.0.1/32", "127.0.0.1"},
		{"[2001:db8::1]:5555", "127.0.0.1/32", "127.0.0.1"},
	} {
		trials = append(trials, trial{
			name: c.from, headers: "x-forwarded-for: " + c.from,
			route: "rate_limits: [{actions: [{%address}, {masked_remote_address: {v6_prefix_mask_len: 64}}]}, {actions: [{%address}, {remote_address: {}}]}]",
			asks:  strings.NewReplacer(".", "_", ":", "_").Replace(fmt.Sprintf("masked_remote_address_%s 1, remote_address_%s 1", c.network, c.address)), // as in metrics
		})
	}
	w.try(trials)
}

func headers(w *world) {
	const list = "rate_limits: [{$three}]"
	local := func(headers string) string {
		return `- {name: local, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit, ` +
			"stat_prefix: local, token_bucket: {max_tokens: 100, tokens_per_fill: 100, fill_interval: 3600s}, enable_x_ratelimit_headers: " + headers +
			", filter_enabled: {default_value: {numerator: 100}}, filter_enforced: {default_value: {numerator: 100}}}}"
	}
	w.try([]trial{
		{
			name: "filter_enforced at 0 %", times: 5, asks: "three 5", route: list,
			filter: "filter_enforced: {default_value: {numerator: 0}, runtime_key: trials.enforced}",
			want:   "^200, x-ratelimit-limit: `3, .*remaining: `0`.* retry-after: `\\d+`, x-envoy-ratelimited: `true`$",
		},
		{name: "a bucket of 20 a minute with burst 40", route: "rate_limits: [{$bucket}]", asks: "bucket 1", want: "^200, x-ratelimit-limit: `20, .*remaining: `39`"},
		{name: "a sliding window of a minute", route: "rate_limits: [{$window}]", asks: "window 1", want: "^200, .*reset: `6[1-6]`"},
		{
			name: "local_ratelimit in front, with headers", before: local("DRAFT_VERSION_03"), times: 5, asks: "three 5", route: list,
			want: "^429, x-ratelimit-limit: `3, .*` and `100`, .* retry-after: `\\d+`, x-envoy-ratelimited: `true`$",
		},
		{
			name: "local_ratelimit in front, without", before: local("OFF"), times: 5, asks: "three 5", route: list,
			want: "^429, x-ratelimit-limit: `3, .* retry-after: `\\d+`, x-envoy-ratelimited: `true`$",
		},
	})
}

// sizes makes calls with the server's maximum number of descriptors and of entries, and with one more.
func sizes(w *world) {
	descriptors := func(n int) string { return "rate_limits: [" + strings.Repeat("{$route}, ", n) + "]" }
	entries := func(n int) string { return "rate_limits: [{actions: [" + strings.Repeat("{%route}, ", n) + "]}]" }
	_, s := w.try([]trial{
		{name: "1,024 descriptors", route: descriptors(1024), asks: "route 1024"},
		{name: "256 entries", route: entries(256), count: "ok"},
		{name: "1,025 descriptors", route: descriptors(1025), count: "error", want: "^200"},
		{name: "257 entries", route: entries(257), count: "error", want: "^200"},
	})
	invalid := s.metrics(w)[`ratelimitd_call_errors_total{err_type="service_error"}`]
	lines := strings.Count(s.Output(), "failed with INVALID_ARGUMENT")
	w.got(invalid == 2 && lines == 1, "%.0f errors, %d line in the log", invalid, lines)
}
