package e2e

import (
	"cmp"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3" // in an Any of a trial
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_metadata/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
)

// trial is what comes of requests to a listener that differs from a plain one. Its fields are YAML: $NAME stands for a rate limit whose
// descriptor is NAME=<the trial>, and %NAME for its action.
type trial struct {
	name string

	conf, host, route, cluster string // the RateLimitPerRoute of the route configuration, and so on to the weighted cluster
	plainHost, plainRoute      string // in the virtual host, and in the route to the application
	instead                    string // of the route to the application
	key                        string // under which the RateLimitPerRoute is; empty stands for the filter's name
	filter, before             string // in the rate-limit filter, and in front of it

	headers string // of a request, as in "x-cost: 7, x-user: ann"
	times   int    // requests; 0 stands for 1

	want  string // a regular expression that the last answer, as told, matches
	asks  string // the hits of the rules, as in "route 1"
	count string // of the filter: ok, over_limit or error; empty stands for either of the first two if asks is not, and for none if it is
}

// none says that the filter counts nothing, though it asks.
const none = "none"

// plain is the listener of a trial. A line in capitals stands for those of the trial.
const plain = `name: TRIAL
address: {socket_address: {address: 127.0.0.1, port_value: 0}}
filter_chains:
  - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: TRIAL
          use_remote_address: true
          xff_num_trusted_hops: 1
          http_filters:
            BEFORE
            - name: envoy.filters.http.ratelimit
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                domain: edge
                stat_prefix: TRIAL
                timeout: 20s
                enable_x_ratelimit_headers: DRAFT_VERSION_03
                rate_limit_service: {transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: ratelimitd}}}
                FILTER
            - name: envoy.filters.http.router
              typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          route_config:
            CONF
            virtual_hosts:
              - name: application
                domains: ["*"]
                HOST
                routes:
                  - match: {prefix: /}
                    ROUTE
`

// trialRules are those of all trials. Each trial has counters of its own, whose names are in the metrics.
const trialRules = `domain: edge
descriptors:
  - {key: conf, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 100000}}
  - {key: host, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 100000}}
  - {key: route, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 100000}}
  - {key: cluster, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 100000}}
  - {key: filter, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 100000}}
  - {key: three, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: bucket, value_to_metric: true, rate_limit: {unit: minute, requests_per_unit: 20, algorithm: token_bucket, burst: 40}}
  - {key: window, value_to_metric: true, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: sliding_window}}
  - key: address
    value_to_metric: true
    descriptors:
      - {key: remote_address, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 100000}}
      - {key: masked_remote_address, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 100000}}
`

// perRoute returns the field of a route, or of what has routes, that holds the filter's configuration there; "" without one.
func (x *trial) perRoute(config string) string {
	if config == "" {
		return ""
	}
	if !strings.Contains(config, "@type") {
		config = `"@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute, ` + config
	}
	return "typed_per_filter_config: {" + cmp.Or(x.key, envoytest.FilterName) + ": {" + config + "}}\n"
}

// listener returns the listener of a trial.
func (x *trial) listener(w *world, id string) *listenerv3.Listener {
	w.Helper()
	to := "cluster: application"
	if x.cluster != "" {
		to = "weighted_clusters: {clusters: [{name: application, weight: 1, " + strings.TrimSpace(x.perRoute(x.cluster)) + "}]}"
	}
	to = "route: {" + to + ", " + x.plainRoute + "}\n"
	if x.instead != "" {
		to = x.instead + "\n"
	}
	parts := map[string]string{
		"BEFORE": x.before, "FILTER": x.filter, "CONF": x.perRoute(x.conf),
		"HOST": x.perRoute(x.host) + x.plainHost, "ROUTE": to + x.perRoute(x.route),
	}
	var text strings.Builder
	for line := range strings.Lines(plain) {
		part, ok := parts[strings.TrimSpace(line)]
		if !ok {
			text.WriteString(line)
			continue
		}
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
		for one := range strings.Lines(part) {
			text.WriteString(indent + strings.TrimSuffix(one, "\n") + "\n")
		}
	}
	yaml := regexp.MustCompile(`\$(\w+)`).ReplaceAllString(text.String(), "actions: [{%$1}]")
	yaml = regexp.MustCompile(`%([a-z]\w+)`).ReplaceAllString(yaml, "generic_key: {descriptor_key: $1, descriptor_value: TRIAL}")
	l := new(listenerv3.Listener)
	if err := envoytest.Decode(strings.ReplaceAll(yaml, "TRIAL", id), l); err != nil {
		w.Fatalf("%s: %v", x.name, err)
	}
	return l
}

// on returns the setup of an Envoy with the trials' listeners.
func on(w *world, trials []trial) setup {
	return setup{example: "envoy", timeout: patient, change: func(c *config) {
		for i := range trials {
			c.StaticResources.Listeners = append(c.StaticResources.Listeners, trials[i].listener(w, id(i)))
		}
		runtime := "{layers: [{name: trials, static_layer: {ratelimit.peak.http_filter_enabled: 0}}]}"
		c.LayeredRuntime = new(bootstrapv3.LayeredRuntime)
		testkit.Check(w, envoytest.Decode(runtime, c.LayeredRuntime))
	}}
}

func id(i int) string { return fmt.Sprintf("t%02d", i) }

// try plays trials, all with one Envoy and one server, and returns both. What the answers of trials with a want were is taken down.
func (w *world) try(trials []trial) (*proxy, *service) {
	w.Helper()
	up := w.upstream(func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("x-cost", "7")
		fmt.Fprintln(out, "hello")
	})
	s := w.serve(trialRules, "BACKEND_TYPE=memory", "LIMIT_RETRY_AFTER_HEADER=Retry-After")
	p := w.proxy(on(w, trials), up, s)
	answers := make([]answer, len(trials))
	for i, x := range trials {
		header := http.Header{}
		for field := range strings.SplitSeq(x.headers, ", ") {
			if name, value, ok := strings.Cut(field, ": "); ok {
				header.Set(name, value)
			}
		}
		at := p.listener(id(i))
		for range max(x.times, 1) {
			answers[i] = w.get(at+"/", header)
		}
	}
	good := 0
	for i, x := range trials {
		if x.count == none { // such a call is made when an answer has ended
			testkit.Poll(testkit.Patience, func() bool { return s.hitsOf(w, id(i)) == x.asks })
		}
		got, hits := told(answers[i]), s.hitsOf(w, id(i))
		ok := regexp.MustCompile(x.want).MatchString(got) && hits == x.asks && p.counted(id(i), &x)
		if ok {
			good++
		}
		if !ok || x.want != "" {
			w.got(ok, "%s: %s", x.name, got)
		}
		if !ok {
			w.Logf("%s: want %q; rules have %q, want %q; Envoy counts\n%s", x.name, x.want, hits, x.asks, p.admin("/stats?filter=ratelimit."+id(i)))
		}
	}
	w.got(good == len(trials), "%d of %d are so", good, len(trials))
	return p, s
}

// hitsOf returns the hits of a trial's rules, as in "route 1".
func (s *service) hitsOf(w *world, id string) string {
	w.Helper()
	series := regexp.MustCompile(`^ratelimit_service_rate_limit_total_hits\{domain="edge",key1="(\w+)_` + id + `"(?:,key2="([^"]*)")?\}$`)
	var all []string
	for name, value := range s.metrics(w) {
		if found := series.FindStringSubmatch(name); found != nil && value > 0 {
			all = append(all, fmt.Sprintf("%s %.0f", cmp.Or(found[2], found[1]), value))
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// counted reports whether the filter has counted what it should.
func (p *proxy) counted(id string, x *trial) bool {
	p.w.Helper()
	of := func(what string) int { return p.count("cluster.application.ratelimit." + id + "." + what) }
	ok, over, failed := of("ok"), of("over_limit"), of("error")
	switch times := max(x.times, 1); {
	case x.count != "" && x.count != none:
		return of(x.count) == times && ok+over+failed == times
	case x.count == "" && x.asks != "":
		return ok+over == times && failed == 0
	default:
		return ok+over+failed == 0
	}
}
