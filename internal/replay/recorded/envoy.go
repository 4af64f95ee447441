package recorded

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
)

// envoyConfig is what a configuration of Envoy says about which requests its rate-limit filter makes.
type envoyConfig struct {
	domain string
	hosts  []envoyHost
}

type envoyHost struct {
	domains []string
	routes  []envoyRoute
}

type envoyRoute struct {
	place   string // such as "route 2 of edge"
	match   *routev3.RouteMatch
	cluster string
	domain  string
	limits  []*routev3.RateLimit
}

// object is a mapping of YAML.
type object = map[string]any

var errNotEnvoy = errors.New("want the configuration of an Envoy whose listener has the filter envoy.filters.http.ratelimit, or domain and rate_limits by themselves")

// Envoy returns the mapping of a file of YAML: either a configuration of Envoy as it is, or the parts of it that matter,
// domain, rate_limits, and, if need be, routes and log_format.
func Envoy(text []byte) (*Mapping, error) {
	if err := rulefile.StrayBreak(text); err != nil {
		return nil, fmt.Errorf("reading YAML: %w", err)
	}
	var tree object
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return nil, fmt.Errorf("reading YAML: %w", err)
	}
	var managers []object
	findManagers(tree, &managers)
	switch {
	case len(managers) > 1:
		return nil, fmt.Errorf("there are %d listeners with a rate-limit filter: leave one of them", len(managers))
	case len(managers) == 1:
		return fromManager(managers[0])
	case tree["rate_limits"] == nil && tree["routes"] == nil:
		return nil, errNotEnvoy
	}
	return fromParts(tree)
}

// findManagers finds the HTTP connection managers that have a rate-limit filter, anywhere in a tree.
func findManagers(node any, into *[]object) {
	switch n := node.(type) {
	case object:
		if _, ok := limitFilter(n); ok {
			*into = append(*into, n)
			return
		}
		for _, key := range sortedKeys(n) {
			findManagers(n[key], into)
		}
	case []any:
		for _, item := range n {
			findManagers(item, into)
		}
	}
}

// limitFilter returns the configuration of a manager's rate-limit filter.
func limitFilter(manager object) (config object, ok bool) {
	for _, f := range list(manager, "http_filters") {
		filter, _ := f.(object)
		config, _ = filter["typed_config"].(object)
		kind, _ := config["@type"].(string)
		if strings.HasSuffix(kind, "envoy.extensions.filters.http.ratelimit.v3.RateLimit") {
			return config, true
		}
	}
	return nil, false
}

// fromParts returns the mapping of what a file says about it.
func fromParts(tree object) (*Mapping, error) {
	known := []string{"domain", "rate_limits", "routes", "log_format"}
	for _, key := range sortedKeys(tree) {
		if !slices.Contains(known, key) {
			return nil, fmt.Errorf("unknown key %q: want %s", key, strings.Join(known, ", "))
		}
	}
	c := &envoyConfig{domain: word(tree, "domain")}
	limits, err := limitsOf(tree)
	if err != nil {
		return nil, err
	}
	host := envoyHost{domains: []string{"*"}}
	if tree["routes"] == nil {
		host.routes = []envoyRoute{{place: "rate_limits", limits: limits}}
	} else if host.routes, err = routesOf(tree, "routes", func(object) (string, []*routev3.RateLimit, error) { return "", limits, nil }); err != nil {
		return nil, err
	}
	c.hosts = []envoyHost{host}
	m := &Mapping{envoy: c}
	format, _ := tree["log_format"].(object)
	return m.complete(format)
}

// fromManager returns the mapping of an HTTP connection manager.
func fromManager(manager object) (*Mapping, error) {
	filter, _ := limitFilter(manager)
	routing, ok := manager["route_config"].(object)
	if !ok {
		return nil, errors.New("the listener gets its routes from elsewhere (rds): want its route_config in the file, or domain and rate_limits by themselves")
	}
	c := &envoyConfig{domain: word(filter, "domain")}
	global, err := limitsOf(filter)
	if err != nil {
		return nil, err
	}
	for _, h := range list(routing, "virtual_hosts") {
		tree, _ := h.(object)
		host := envoyHost{}
		for _, d := range list(tree, "domains") {
			host.domains = append(host.domains, fmt.Sprint(d))
		}
		above := func(route object) (string, []*routev3.RateLimit, error) { return effective(route, tree, global) }
		if host.routes, err = routesOf(tree, "routes", above); err != nil {
			return nil, fmt.Errorf("virtual host %s: %w", word(tree, "name"), err)
		}
		c.hosts = append(c.hosts, host)
	}
	if stage, ok := filter["stage"].(int); ok && stage != 0 {
		c.onlyStage(uint32(stage))
	} else {
		c.onlyStage(0)
	}
	m := &Mapping{envoy: c}
	return m.complete(logFormat(manager))
}

// complete takes the format of the log, and checks that something is asked.
func (m *Mapping) complete(format object) (*Mapping, error) {
	if m.envoy.domain == "" {
		return nil, errors.New("there is no domain, which is that of the rate-limit filter")
	}
	some := false
	for _, h := range m.envoy.hosts {
		for _, r := range h.routes {
			some = some || len(r.limits) > 0
		}
	}
	if !some {
		return nil, errors.New("no route has rate_limits, so no request would be made")
	}
	switch source, _ := format["text_format_source"].(object); {
	case format == nil:
	case format["json_format"] != nil:
		m.json, _ = format["json_format"].(object)
	case source != nil:
		m.text = word(source, "inline_string")
	default:
		m.text = word(format, "text_format")
	}
	return m, nil
}

// logFormat returns the format of a manager's first access log that has one.
func logFormat(manager object) object {
	for _, l := range list(manager, "access_log") {
		entry, _ := l.(object)
		config, _ := entry["typed_config"].(object)
		if format, ok := config["log_format"].(object); ok {
			return format
		}
		if config["json_format"] != nil || config["typed_json_format"] != nil {
			format := config["json_format"]
			if format == nil {
				format = config["typed_json_format"]
			}
			return object{"json_format": format}
		}
		if text := word(config, "format"); text != "" {
			return object{"text_format": text}
		}
	}
	return nil
}

// routesOf returns the routes below a key. above returns the domain and the limits in force for a route.
func routesOf(tree object, key string, above func(object) (string, []*routev3.RateLimit, error)) (routes []envoyRoute, err error) {
	for i, r := range list(tree, key) {
		route, _ := r.(object)
		place := fmt.Sprintf("route %d", i+1)
		if name := word(route, "name"); name != "" {
			place = "route " + name
		}
		out := envoyRoute{place: place, match: &routev3.RouteMatch{}}
		if err := decode(route["match"], out.match); err != nil {
			return nil, fmt.Errorf("%s: match: %w", place, err)
		}
		if out.domain, out.limits, err = above(route); err != nil {
			return nil, fmt.Errorf("%s: %w", place, err)
		}
		if own, err := limitsOf(route); err != nil {
			return nil, fmt.Errorf("%s: %w", place, err)
		} else if own != nil {
			out.limits = own
		}
		action, _ := route["route"].(object)
		out.cluster = word(action, "cluster")
		if route["redirect"] != nil || route["direct_response"] != nil {
			out.limits = nil // the filter does not ask for routes without a cluster
		}
		routes = append(routes, out)
	}
	return routes, nil
}

// effective returns the domain and the limits that the filter uses for a route: those that the filter's own configuration has
// for it, or for its virtual host, or for all; and else those of the route, and those of its virtual host.
func effective(route, host object, global []*routev3.RateLimit) (domain string, limits []*routev3.RateLimit, err error) {
	own := filterConfig(route)
	if own == nil {
		own = filterConfig(host)
	}
	domain = word(own, "domain")
	if limits, err = limitsOf(own); err != nil || limits != nil {
		return domain, limits, err
	}
	if global != nil {
		return domain, global, nil
	}
	action, _ := route["route"].(object)
	if limits, err = limitsOf(action); err != nil {
		return domain, nil, err
	}
	ofHost, err := limitsOf(host)
	include, _ := action["include_vh_rate_limits"].(bool)
	switch option := word(own, "vh_rate_limits"); {
	case option == "IGNORE":
	case option == "INCLUDE", include, limits == nil:
		limits = append(slices.Clone(limits), ofHost...)
	}
	return domain, limits, err
}

// filterConfig returns what a route or a virtual host has for the rate-limit filter.
func filterConfig(of object) object {
	configs, _ := of["typed_per_filter_config"].(object)
	for _, key := range sortedKeys(configs) {
		config, _ := configs[key].(object)
		kind, _ := config["@type"].(string)
		if strings.HasSuffix(kind, "envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute") {
			return config
		}
	}
	return nil
}

// onlyStage drops the limits of other stages than the filter's.
func (c *envoyConfig) onlyStage(stage uint32) {
	for _, h := range c.hosts {
		for i := range h.routes {
			h.routes[i].limits = slices.DeleteFunc(slices.Clone(h.routes[i].limits), func(l *routev3.RateLimit) bool { return l.GetStage().GetValue() != stage })
		}
	}
}

// ends reports whether something is refunded.
func (c *envoyConfig) ends() bool {
	for _, h := range c.hosts {
		for _, r := range h.routes {
			for _, l := range r.limits {
				if l.GetHitsAddend().GetIsNegativeHits() {
					return true
				}
			}
		}
	}
	return false
}

// limitsOf returns the rate_limits of something; nil if it has no such key.
func limitsOf(tree object) (limits []*routev3.RateLimit, err error) {
	const key = "rate_limits"
	if tree[key] == nil {
		return nil, nil
	}
	items, ok := tree[key].([]any)
	if !ok {
		return nil, fmt.Errorf("%s: want a list", key)
	}
	limits = make([]*routev3.RateLimit, len(items))
	for i, item := range items {
		limits[i] = &routev3.RateLimit{}
		limit, _ := item.(object)
		for _, a := range list(limit, "actions") {
			if action, _ := a.(object); action["extension"] != nil { // of a type that is not known here
				extension, _ := action["extension"].(object)
				return nil, fmt.Errorf("%s: item %d: what the extension %s does is not known here: write another action in its place", key, i+1, word(extension, "name"))
			}
		}
		if err := decode(item, limits[i]); err != nil {
			return nil, fmt.Errorf("%s: item %d: %w", key, i+1, err)
		}
	}
	return limits, nil
}

// decode makes YAML a message, as Envoy does, which knows no other fields.
func decode(tree any, m proto.Message) error {
	text, err := json.Marshal(tree)
	if err != nil {
		return fmt.Errorf("as JSON: %w", err)
	}
	if err := protojson.Unmarshal(text, m); err != nil {
		return errors.New(strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: "))
	}
	if v, ok := m.(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			return err
		}
	}
	return nil
}

func list(tree object, key string) []any {
	items, _ := tree[key].([]any)
	return items
}

func word(tree object, key string) string {
	text, _ := tree[key].(string)
	return text
}

func sortedKeys(tree object) []string {
	keys := make([]string, 0, len(tree))
	for key := range tree {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
