package cli

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/plain"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// The types of Envoy's configuration that its filters with a call for each request are about.
const (
	limitFilter   = "ratelimit.v3.RateLimit" // ends the names of the filters for HTTP, for connections and for Thrift
	limitPerRoute = "envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute"
	localLimit    = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"
	celDescriptor = "envoy.extensions.rate_limit_descriptors.expr.v3.Descriptor"
)

// expandsValues is the runtime key with which Envoy expands operators in the values of actions.
const expandsValues = "envoy.reloadable_features.enable_formatter_for_ratelimit_action_descriptor_value"

var (
	operatorIn = regexp.MustCompile(`%[A-Z][A-Z_]*(\([^)]*\))?(:\d+)?%`)
	celText    = regexp.MustCompile(`'[^']*'|"[^"]*"`)
	celJoins   = regexp.MustCompile(`''\]?\s*\+|\+\s*(''|request\.headers\[)`) // in an expression whose texts are empty
)

// limits checks the filters with a call for each request, and rate_limits anywhere.
func (c *envoyCheck) limits(all []*yaml.Node) {
	var domains []string
	clusters := map[string][]*yaml.Node{}
	local := false // rate_limits may be meant for the filter local_ratelimit
	for _, n := range all {
		if strings.HasSuffix(typeOf(n), "http."+limitFilter) {
			domains = append(domains, textOf(n, "domain"))
		}
		if child(n, "load_assignment") != nil || child(n, "connect_timeout") != nil || strings.Contains(textOf(n, "type"), "DNS") {
			clusters[textOf(n, "name")] = append(clusters[textOf(n, "name")], n)
		}
		local, c.expands = local || typeOf(n) == localLimit, c.expands || isTrue(textOf(n, expandsValues))
	}
	domain := strings.Join(slices.Compact(domains), " ") // no domain if there are several
	for _, n := range all {
		switch t := typeOf(n); {
		case t == quotaFilter:
			c.http2(child(n, "rlqs_server"), clusters)
		case strings.HasSuffix(t, limitFilter):
			c.limitFilter(n, clusters)
			c.list(n, textOf(n, "domain"))
		case t == limitPerRoute:
			c.known(child(n, "domain"))
			c.list(n, cmp.Or(textOf(n, "domain"), domain))
		case t == "" && !local:
			c.list(n, domain)
		}
	}
}

// limitFilter checks a filter.
func (c *envoyCheck) limitFilter(n *yaml.Node, clusters map[string][]*yaml.Node) {
	c.calls++
	c.known(child(n, "domain"))
	c.http2(child(child(n, "rate_limit_service"), "grpc_service"), clusters)
	if child(n, "failure_mode_deny_percent") == nil && !isTrue(textOf(n, "failure_mode_deny")) {
		c.open++
	}
}

// known warns of a domain that the rules do not have.
func (c *envoyCheck) known(domain *yaml.Node) {
	has := func(s *descriptors.Set) bool { return s.Domain([]byte(domain.Value)) != nil }
	if domain != nil && domain.Value != "" && len(c.sets) > 0 && !slices.ContainsFunc(c.sets, has) {
		c.warn(domain, "%s: nothing is limited", c.sets[0].Unknown(domain.Value))
	}
}

// http2 checks the cluster of a grpc_service, of those by name, unless it is configured elsewhere.
func (c *envoyCheck) http2(service *yaml.Node, clusters map[string][]*yaml.Node) {
	name := textOf(child(service, "envoy_grpc"), "cluster_name")
	speaks := func(n *yaml.Node) bool {
		return child(n, "http2_protocol_options") != nil || child(n, "auto_config") != nil || child(n, "use_downstream_protocol_config") != nil
	}
	for _, n := range clusters[name] {
		if name != "" && !slices.ContainsFunc(mappings(n, nil), speaks) {
			c.fail(n, "the cluster '%s' speaks HTTP/1, so every call to ratelimitd fails: want http2_protocol_options", plain.Shorten(name))
		}
	}
	delete(clusters, name) // once is enough
}

// list checks the rate_limits of a node, or the descriptors of the filter for connections. Calls for a domain are made of them.
func (c *envoyCheck) list(n *yaml.Node, domain string) {
	for _, item := range slices.Concat(items(n, "rate_limits"), items(n, "descriptors")) {
		switch hits, limit := child(item, "hits_addend"), child(item, "limit"); {
		case child(item, "entries") != nil && cmp.Or(hits, limit) != nil:
			c.warn(cmp.Or(hits, limit), "Envoy does not send limit and hits_addend of this filter: remove them")
		case hits != nil && typeOf(n) == "":
			c.warn(hits, "hits_addend has no effect in a route or a virtual host: want the item in typed_per_filter_config")
		}
		var entries []descriptors.Entry
		whole := child(item, "limit") == nil // which needs no rule
		for _, a := range slices.Concat(items(item, "actions"), items(item, "entries")) {
			e, known := c.action(a)
			entries, whole = append(entries, e), whole && known
		}
		for _, set := range c.sets {
			d := set.Domain([]byte(domain))
			if d == nil || !whole {
				continue
			}
			ours := slices.DeleteFunc(entries, func(e descriptors.Entry) bool { return slices.Contains(d.ReserveEntries, string(e.Key)) })
			if steps := d.Explain(ours); steps[len(steps)-1].NoKey {
				c.warn(item, "domain %s: %s", plain.Shorten(domain), steps[len(steps)-1].Text)
			}
		}
	}
}

// action checks an action, and returns its entry, unless that is not known or not there in every request.
func (c *envoyCheck) action(a *yaml.Node) (e descriptors.Entry, known bool) {
	if config := child(child(a, "extension"), "typed_config"); typeOf(config) == celDescriptor {
		if celJoins.MatchString(celText.ReplaceAllString(textOf(config, "text"), "''")) {
			c.warn(child(config, "text"), "CEL does not join texts by + here, so there is no descriptor and no limit: want an action for each text")
		}
		return descriptors.Entry{Key: []byte(textOf(config, "descriptor_key"))}, !isTrue(textOf(config, "skip_if_error"))
	}
	if key := textOf(a, "key"); key != "" || len(a.Content) < 2 {
		return descriptors.Entry{Key: []byte(key), Value: []byte("…")}, key != ""
	}
	kind, v := a.Content[0].Value, a.Content[1]
	for _, field := range [...]string{"descriptor_key", "descriptor_value", "default_value"} {
		if kind != "remote_address_match" && !c.expands && operatorIn.MatchString(textOf(v, field)) {
			c.warn(child(v, field), "Envoy sends this as it is, so all callers share one counter: want an action such as request_headers, or %s", expandsValues)
		}
	}
	usual := strings.NewReplacer("_value", "", "_parameter", "").Replace(kind) // header_match, query_match, and else the name of the action
	e.Key, e.Value = []byte(cmp.Or(textOf(v, "descriptor_key"), usual)), []byte(cmp.Or(textOf(v, "descriptor_value"), "…"))
	return e, kind != "extension" && !isTrue(textOf(v, "skip_if_absent"))
}

// mappings appends the mappings at a node and below it.
func mappings(n *yaml.Node, all []*yaml.Node) []*yaml.Node {
	if n.Kind == yaml.MappingNode {
		all = append(all, n)
	}
	for _, item := range n.Content {
		all = mappings(item, all)
	}
	return all
}

// textOf returns the scalar under a key; empty if there is none.
func textOf(n *yaml.Node, key string) string { return cmp.Or(child(n, key), &yaml.Node{}).Value }

// items returns the elements of the list, or the keys and values of the map, under a key.
func items(n *yaml.Node, key string) []*yaml.Node { return cmp.Or(child(n, key), &yaml.Node{}).Content }
