package cli

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch/file"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Types of Envoy's configuration for RLQS.
const (
	quotaFilter   = "envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig"
	quotaBucket   = "envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings"
	quotaOverride = "envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaOverride"
	headerInput   = "envoy.type.matcher.v3.HttpRequestHeaderMatchInput"
)

// checkEnvoy returns the problems of the rate limit filters in an Envoy configuration, in particular settings that Envoy ignores, and
// a summary line, or an error. The findings were measured with Envoy 1.40; see docs/where-rate-limits-go.md and docs/rlqs.md.
func checkEnvoy(path string, strict bool, rules []*descriptors.Set) (_ descriptors.Problems, summary string, _ error) {
	sources, problems := file.ReadFile(path)
	if problems != nil {
		return problems, "", failures(path, problems)
	}
	failed := func(text string) (descriptors.Problems, string, error) {
		problem := descriptors.Problems{{File: path, Text: text}}
		return problem, "", failures(path, problem)
	}
	c := envoyCheck{Report: rulefile.Report{File: path, Strict: strict}, sets: rules}
	var text yaml.Node
	if err := yaml.Unmarshal(sources[0].Data, &text); err != nil {
		return failed("reading the Envoy configuration: " + err.Error())
	}
	left := maxNodes
	tree := expanded(&text, &left)
	if tree == nil {
		return failed(sprintf("with its aliases expanded, this file has more than %d values", maxNodes))
	}
	c.limits(mappings(tree, nil))
	c.visit(tree, nil)
	c.Problems = slices.Compact(c.Sorted()) // a node with several aliases is reported once
	if c.Problems.Failed() {
		return c.Problems, "", failures(path, c.Problems)
	}
	return c.Problems, sprintf("%s: ok, %s of ratelimit (%d without failure_mode_deny), %d of rate_limit_quota, %s\n", path,
		descriptors.CountText(c.calls, "filter"), c.open, c.filters, descriptors.CountText(len(c.Problems), "warning")), nil
}

// maxNodes is the maximum number of YAML nodes after aliases are expanded: a hundred times a large configuration.
const maxNodes = 1_000_000

// expanded returns a copy of n in which each alias is replaced by its anchor's value, as Envoy reads it. Each node decrements *left.
// It returns nil when *left becomes negative, which an anchor that contains itself always causes.
func expanded(n *yaml.Node, left *int) *yaml.Node {
	if *left--; *left < 0 {
		return nil
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	c := *n
	c.Content = make([]*yaml.Node, len(n.Content))
	for i, item := range n.Content {
		if c.Content[i] = expanded(item, left); c.Content[i] == nil {
			return nil
		}
	}
	return &c
}

// envoyCheck checks one configuration. It visits nodes wherever they are, so it also checks a fragment of a
// configuration.
type envoyCheck struct {
	rulefile.Report

	sets           []*descriptors.Set // rules to check keys against
	expands        bool               // whether expandsValues is set
	filters, calls int                // numbers of rate_limit_quota and ratelimit filters
	open           int                // ratelimit filters that admit requests when no server answers
}

func (c *envoyCheck) fail(at *yaml.Node, format string, args ...any) {
	c.Fail(rulefile.At(at), "", format, args...)
}

func (c *envoyCheck) warn(at *yaml.Node, format string, args ...any) {
	c.Warn(rulefile.At(at), "", format, args...)
}

// visit checks n and its descendants. headers are the headers that every request has at this point.
func (c *envoyCheck) visit(n *yaml.Node, headers []string) {
	if n.Kind != yaml.MappingNode {
		for _, item := range n.Content {
			c.visit(item, headers)
		}
		return
	}
	switch typeOf(n) {
	case quotaFilter:
		c.filters++
		c.filter(n)
	case quotaBucket:
		c.bucket(n, headers)
	case quotaOverride:
		c.fail(n, "Envoy rejects RateLimitQuotaOverride, so it does not start: put the matchers for all routes in the filter's bucket_matchers")
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		with := headers
		switch n.Content[i].Value {
		case "on_match", "onMatch":
			with = append(slices.Clone(headers), matched(child(n, "predicate"))...)
		case "exact_match_map", "exactMatchMap", "prefix_match_map", "prefixMatchMap":
			with = append(slices.Clone(headers), matched(child(n, "input"))...)
		}
		c.visit(n.Content[i+1], with)
	}
}

// filter checks the configuration of a rate_limit_quota filter.
func (c *envoyCheck) filter(n *yaml.Node) {
	for _, key := range [...]string{"filter_enabled", "filter_enforced", "request_headers_to_add_when_not_enforced"} {
		if found := child(n, key); found != nil {
			c.warn(found, "%s has no effect on rate_limit_quota, which always enforces: remove it", key)
		}
	}
	for _, m := range mappings(cmp.Or(child(n, "bucket_matchers"), &yaml.Node{}), nil) {
		if keep := child(m, "keep_matching"); keep != nil && isTrue(keep.Value) {
			c.fail(keep, "keep_matching has no effect, because Envoy enforces this bucket and stops there: remove it")
		}
	}
}

// isTrue reports whether Envoy reads a scalar as true, by YAML 1.1.
func isTrue(text string) bool {
	return slices.Contains([]string{"true", "yes", "on", "y"}, strings.ToLower(text))
}

// bucket checks the settings of an RLQS bucket for requests that have the given headers.
func (c *envoyCheck) bucket(n *yaml.Node, headers []string) {
	if bad := child(child(child(n, "no_assignment_behavior"), "fallback_rate_limit"), "token_bucket"); bad != nil {
		c.fail(bad, "a token_bucket in no_assignment_behavior crashes Envoy: use blanket_rule: ALLOW_ALL or DENY_ALL")
	}
	builder := items(child(n, "bucket_id_builder"), "bucket_id_builder")
	for i := 1; i < len(builder); i += 2 {
		input := child(child(builder[i], "custom_value"), "typed_config")
		if typeOf(input) != headerInput {
			continue
		}
		name := child(input, "header_name")
		if name == nil || strings.HasPrefix(name.Value, ":") || slices.Contains(headers, strings.ToLower(name.Value)) {
			continue
		}
		c.warn(name, "a request without the header '%s' is not limited: add a predicate on that header, and on_no_match with a bucket for requests without it",
			descriptors.Shorten(name.Value))
	}
}

// matched returns the headers, in lower case, that every request has once an input or a predicate has matched.
func matched(n *yaml.Node) (headers []string) {
	switch {
	case n == nil:
		return nil
	case typeOf(n) == headerInput:
		return []string{strings.ToLower(textOf(n, "header_name"))}
	case child(n, "or_matcher") != nil || child(n, "not_matcher") != nil:
		return nil
	}
	for _, item := range n.Content {
		headers = append(headers, matched(item)...)
	}
	return headers
}

// typeOf returns the type name in the @type field of an Any message, or "".
func typeOf(n *yaml.Node) string {
	name := textOf(n, "@type")
	return name[strings.LastIndexByte(name, '/')+1:]
}

// child returns the value of a key in snake_case or camelCase, the two spellings that protobuf's JSON has, or nil.
func child(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if got := n.Content[i].Value; got == key || strings.EqualFold(got, strings.ReplaceAll(key, "_", "")) {
			return n.Content[i+1]
		}
	}
	return nil
}

// A client's smallest useful share of a limit.
const (
	minShare      = 5 // hits a second
	minBurstShare = 1 // hits a second, if the client's share of the burst is minTokens or more
	minTokens     = 5
)

// checkShares warns of limits with rlqs that are too small to divide among f.clients clients.
func (f *ruleFlags) checkShares(set *descriptors.Set) (problems descriptors.Problems) {
	for r := range set.Rules() {
		if r.RLQS == nil {
			continue
		}
		l := &r.RateLimits.Limits()[0]
		share := float64(l.Hits) * 1e6 / float64(l.Window) / float64(f.clients)
		tokens := float64(l.Capacity()) / float64(f.clients)
		if l.Algorithm == engine.FixedWindow {
			tokens = 0
		}
		if share >= minShare || share >= minBurstShare && tokens >= minTokens {
			continue
		}
		problems = append(problems, descriptors.Problem{
			File: r.File, Line: r.Line, Domain: r.DomainName(), Path: r.Path, Warning: !f.strict,
			Text: fmt.Sprintf("rlqs leaves each of %s %.2g hits a second, which is too few: make it %d or more, or RLS",
				descriptors.CountText(f.clients, "client"), share, minShare),
		})
	}
	return problems
}

// Types of Envoy's configuration for filters that call the service for each request.
const (
	limitFilter   = "ratelimit.v3.RateLimit" // suffix of the HTTP, network, and Thrift filters' types
	limitPerRoute = "envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute"
	localLimit    = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"
	celDescriptor = "envoy.extensions.rate_limit_descriptors.expr.v3.Descriptor"
)

// expandsValues is the runtime key with which Envoy expands operators in the values of actions.
const expandsValues = "envoy.reloadable_features.enable_formatter_for_ratelimit_action_descriptor_value"

var (
	operatorIn = regexp.MustCompile(`%[A-Z][A-Z_]*(\([^)]*\))?(:\d+)?%`)
	celText    = regexp.MustCompile(`'[^']*'|"[^"]*"`)
	celJoins   = regexp.MustCompile(`''\]?\s*\+|\+\s*(''|request\.headers\[)`) // in a CEL expression whose string literals are empty
)

// limits checks the filters that call the service for each request, and all rate_limits.
func (c *envoyCheck) limits(all []*yaml.Node) {
	var domains []string
	clusters := map[string][]*yaml.Node{}
	local := false // whether rate_limits may belong to the local_ratelimit filter
	for _, n := range all {
		if strings.HasSuffix(typeOf(n), "http."+limitFilter) {
			domains = append(domains, textOf(n, "domain"))
		}
		if child(n, "load_assignment") != nil || child(n, "connect_timeout") != nil || strings.Contains(textOf(n, "type"), "DNS") {
			clusters[textOf(n, "name")] = append(clusters[textOf(n, "name")], n)
		}
		local, c.expands = local || typeOf(n) == localLimit, c.expands || isTrue(textOf(n, expandsValues))
	}
	domain := strings.Join(slices.Compact(domains), " ") // unknown if there are several
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

// limitFilter checks a ratelimit filter.
func (c *envoyCheck) limitFilter(n *yaml.Node, clusters map[string][]*yaml.Node) {
	c.calls++
	c.known(child(n, "domain"))
	c.http2(child(child(n, "rate_limit_service"), "grpc_service"), clusters)
	if child(n, "failure_mode_deny_percent") == nil && !isTrue(textOf(n, "failure_mode_deny")) {
		c.open++
	}
}

// known warns of a domain without rules.
func (c *envoyCheck) known(domain *yaml.Node) {
	has := func(s *descriptors.Set) bool { return s.Domain([]byte(domain.Value)) != nil }
	if domain != nil && domain.Value != "" && len(c.sets) > 0 && !slices.ContainsFunc(c.sets, has) {
		c.warn(domain, "%s: nothing is limited", c.sets[0].Unknown(domain.Value))
	}
}

// http2 checks that the cluster of a grpc_service, if it is among clusters, speaks HTTP/2.
func (c *envoyCheck) http2(service *yaml.Node, clusters map[string][]*yaml.Node) {
	name := textOf(child(service, "envoy_grpc"), "cluster_name")
	speaks := func(n *yaml.Node) bool {
		return child(n, "http2_protocol_options") != nil || child(n, "auto_config") != nil || child(n, "use_downstream_protocol_config") != nil
	}
	for _, n := range clusters[name] {
		if name != "" && !slices.ContainsFunc(mappings(n, nil), speaks) {
			c.fail(n, "the cluster '%s' speaks HTTP/1, so every call to ratelimitd fails: add http2_protocol_options", plain.Shorten(name))
		}
	}
	delete(clusters, name) // report a cluster once
}

// list checks the rate_limits of a node, or the descriptors of the network filter, against the rules of the domain.
func (c *envoyCheck) list(n *yaml.Node, domain string) {
	for _, item := range slices.Concat(items(n, "rate_limits"), items(n, "descriptors")) {
		switch hits, limit := child(item, "hits_addend"), child(item, "limit"); {
		case child(item, "entries") != nil && cmp.Or(hits, limit) != nil:
			c.warn(cmp.Or(hits, limit), "Envoy does not send this filter's limit and hits_addend: remove them")
		case hits != nil && typeOf(n) == "":
			c.warn(hits, "hits_addend has no effect in a route or a virtual host: move the item to typed_per_filter_config")
		}
		var entries []descriptors.Entry
		whole := child(item, "limit") == nil // a limit in the request needs no rule
		for _, a := range slices.Concat(items(item, "actions"), items(item, "entries")) {
			e, known := c.action(a)
			entries, whole = append(entries, e), whole && known
		}
		for _, set := range c.sets {
			d := set.Domain([]byte(domain))
			if d == nil || !whole {
				continue
			}
			ours := slices.DeleteFunc(slices.Clone(entries), func(e descriptors.Entry) bool { return slices.Contains(d.ReserveEntries, string(e.Key)) })
			if steps := d.Explain(ours); steps[len(steps)-1].NoKey {
				c.warn(item, "domain %s: %s", plain.Shorten(domain), steps[len(steps)-1].Text)
			}
			c.charge(item, d.Match(ours).Rule, len(ours) < len(entries))
		}
	}
}

// charge warns of a late charge that its rule r, which may be nil, would not apply. hasID reports whether an entry names a
// reservation.
func (c *envoyCheck) charge(item *yaml.Node, r *descriptors.Rule, hasID bool) {
	drops := func(l engine.Limit) bool { return l.DropsCharges() }
	switch {
	case r == nil || !isTrue(textOf(item, "apply_on_stream_done")):
	case r.Reserve == nil && slices.ContainsFunc(r.RateLimits.Limits(), drops):
		c.warn(item, "%s drops this charge if it exceeds the remaining hits, so the request costs nothing: %s", r.Path, r.LateChargeAdvice())
	case r.Reserve != nil && r.Reserve.By == "" && !hasID:
		c.warn(item, "%s takes this charge for another reservation, and the first one is never settled: add its ID as the entry %s, or use reserve with by",
			r.Path, plain.Shorten(r.Reserve.Entry))
	}
}

// action checks an action and returns its entry. known is false if the entry is unknown or not part of every request.
func (c *envoyCheck) action(a *yaml.Node) (e descriptors.Entry, known bool) {
	if config := child(child(a, "extension"), "typed_config"); typeOf(config) == celDescriptor {
		if celJoins.MatchString(celText.ReplaceAllString(textOf(config, "text"), "''")) {
			c.warn(child(config, "text"), "CEL does not concatenate strings with + here, so Envoy sends no descriptor, and nothing is limited: use an action for each string")
		}
		return descriptors.Entry{Key: []byte(textOf(config, "descriptor_key"))}, !isTrue(textOf(config, "skip_if_error"))
	}
	if key := textOf(a, "key"); key != "" || len(a.Content) < 2 {
		return descriptors.Entry{Key: []byte(key), Value: []byte("…")}, key != ""
	}
	kind, v := a.Content[0].Value, a.Content[1]
	for _, field := range [...]string{"descriptor_key", "descriptor_value", "default_value"} {
		if kind != "remote_address_match" && !c.expands && operatorIn.MatchString(textOf(v, field)) {
			c.warn(child(v, field), "Envoy sends this text unchanged, so all callers share one counter: use an action such as request_headers, or %s", expandsValues)
		}
	}
	usual := strings.NewReplacer("_value", "", "_parameter", "").Replace(kind) // header_match and query_match drop a part, other names stay
	e.Key, e.Value = []byte(cmp.Or(textOf(v, "descriptor_key"), usual)), []byte(cmp.Or(textOf(v, "descriptor_value"), "…"))
	return e, kind != "extension" && !isTrue(textOf(v, "skip_if_absent"))
}

// mappings appends to all the mappings at n and below.
func mappings(n *yaml.Node, all []*yaml.Node) []*yaml.Node {
	if n.Kind == yaml.MappingNode {
		all = append(all, n)
	}
	for _, item := range n.Content {
		all = mappings(item, all)
	}
	return all
}

// textOf returns the scalar under a key, or "".
func textOf(n *yaml.Node, key string) string { return cmp.Or(child(n, key), &yaml.Node{}).Value }

// items returns the elements of the list, or the keys and values of the map, under a key.
func items(n *yaml.Node, key string) []*yaml.Node { return cmp.Or(child(n, key), &yaml.Node{}).Content }
