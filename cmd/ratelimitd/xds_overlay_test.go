package main

import (
	"os"
	"path/filepath"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

// routeRules is what Envoy Gateway sends for a route with one rule: a limit for each value of a header.
func routeRules(requests uint32) *ratelimitv3.RateLimitConfig {
	const route = "httproute/default/shop/rule/0/match/0/*"
	return &ratelimitv3.RateLimitConfig{Name: "default/eg/http", Domain: "default/eg/http", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Key: route, Value: route, Descriptors: []*ratelimitv3.RateLimitDescriptor{{
			Key: "rule-0-match-0", RateLimit: &ratelimitv3.RateLimitPolicy{Unit: year, RequestsPerUnit: requests},
		}},
	}}}
}

// An overlay gives rules that come over xDS the keys that their control plane does not know, whichever of both changes.
func TestXDSOverlay(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	overlay := filepath.Join(t.TempDir(), "overlay.yaml")
	write := func(limit string) {
		t.Helper()
		text := "domain: default/eg/*\ndescriptors:\n  - key: httproute/default/shop/*\n    value: \"*\"\n    descriptors:\n      - key: rule-0-match-*\n        rate_limit: {" + limit + "}\n"
		certstest.Write(t, overlay+".new", []byte(text))
		testkit.Check(t, os.Rename(overlay+".new", overlay))
	}
	write("algorithm: token_bucket, burst: 2")
	d := startProcess(t, "", g.env("RULES_OVERLAY="+overlay)...)
	wants := func(want rlsv3.RateLimitResponse_Code) {
		t.Helper()
		const route = "httproute/default/shop/rule/0/match/0/*"
		r := request(route, route)
		r.Domain = "default/eg/http"
		r.Descriptors[0].Entries = append(r.Descriptors[0].Entries, request("rule-0-match-0", "ann").Descriptors[0].Entries...)
		if got, err := d.client().ShouldRateLimit(t.Context(), r); err != nil || got.GetOverallCode() != want {
			t.Errorf("%v, %v; want %v", got, err, want)
		}
	}
	g.send(routeRules(9))
	d.ready()
	d.waits("DEBUG", "/rlconfig", "algorithm: token_bucket, burst: 2, overlay: "+overlay+":6\n")
	wants(rlsv3.RateLimitResponse_OK)
	wants(rlsv3.RateLimitResponse_OK)
	wants(rlsv3.RateLimitResponse_OVER_LIMIT)

	write("algorithm: token_bucket, burst: 3") // without a word from the control plane
	d.waits("DEBUG", "/rlconfig", "burst: 3")
	g.send(routeRules(8)) // and the control plane, without a word from the file
	d.waits("DEBUG", "/rlconfig", "requests_per_unit=8, shadow_mode: false, quota_mode: false, algorithm: token_bucket, burst: 3, overlay: ")

	write("algorithm: token_bukket") // is invalid; the last good one stays, over new rules too
	d.waits("DEBUG", "/metrics", "ratelimit_service_config_load_error 1\n")
	d.waits("HTTP", "/readyz", overlay+":7:33: unknown algorithm '…': want fixed_window, ")
	g.send(routeRules(7))
	d.waits("DEBUG", "/rlconfig", "requests_per_unit=7, shadow_mode: false, quota_mode: false, algorithm: token_bucket, burst: 3, overlay: ")
	d.until("the control plane's rules are in use, and no overlay is current", func() bool { return d.metric("ratelimitd_xds_events_total{event=\"taken\"}") >= 3 })
	if age := d.metric("ratelimitd_config_age_seconds"); age <= 0 {
		t.Errorf("the rules are %v s old beside an invalid overlay", age)
	}

	write("algorithm: token_bucket, initial: 6, burst: 6") // is good again, and conflicts with what the control plane sends next
	d.waits("DEBUG", "/rlconfig", "burst: 6")
	write("algorithm: leaky_bucket, burst: 6")
	d.waits("DEBUG", "/rlconfig", "algorithm: leaky_bucket")
	write("algorithm: concurrency, holder: rule-0-match-0")
	d.waits("DEBUG", "/rlconfig", "algorithm: concurrency")
	invalid := d.metric("ratelimit_service_config_load_error")
	g.send(routeRules(10_001)) // more than concurrency takes
	d.until("the rules are invalid", func() bool { return d.metric("ratelimit_service_config_load_error") > invalid })
	write("algorithm: sliding_window") // and with the next overlay they are good
	d.waits("DEBUG", "/rlconfig", "requests_per_unit=10001, shadow_mode: false, quota_mode: false, algorithm: sliding_window, overlay: ")
	d.waits("DEBUG", "/metrics", "ratelimitd_config_age_seconds 0\n")

	g.end() // an overlay alone does not make the rules of a lost control plane current
	d.until("the control plane is lost", func() bool { return d.metric("ratelimitd_config_age_seconds") > 0 })
	write("algorithm: token_bucket, burst: 5")
	d.waits("DEBUG", "/rlconfig", "burst: 5")
	if age := d.metric("ratelimitd_config_age_seconds"); age <= 0 {
		t.Errorf("the rules are %v s old without a control plane", age)
	}
	d.stop()
}
