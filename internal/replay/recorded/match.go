package recorded

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// test reports whether a value, which there may not be, is what is wanted.
type test func(value []byte, there bool) bool

// condition reports whether a line is what is wanted.
type condition func(values [][]byte) bool

// all holds if all conditions do.
func all(conditions []condition) condition {
	return func(values [][]byte) bool {
		for _, c := range conditions {
			if !c(values) {
				return false
			}
		}
		return true
	}
}

// stringTest returns the test of Envoy's StringMatcher.
func stringTest(m *matcherv3.StringMatcher) (func([]byte) bool, error) {
	fold := func(b []byte) []byte { return b }
	if m.GetIgnoreCase() {
		fold = bytes.ToLower
	}
	of := func(text string, is func(value, text []byte) bool) (func([]byte) bool, error) {
		want := fold([]byte(text))
		return func(value []byte) bool { return is(fold(value), want) }, nil
	}
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return of(p.Exact, bytes.Equal)
	case *matcherv3.StringMatcher_Prefix:
		return of(p.Prefix, bytes.HasPrefix)
	case *matcherv3.StringMatcher_Suffix:
		return of(p.Suffix, bytes.HasSuffix)
	case *matcherv3.StringMatcher_Contains:
		return of(p.Contains, bytes.Contains)
	case *matcherv3.StringMatcher_SafeRegex:
		return regexTest(p.SafeRegex)
	}
	return nil, fmt.Errorf("a string is matched by exact, prefix, suffix, contains or safe_regex here, not by %v", m)
}

func regexTest(m *matcherv3.RegexMatcher) (func([]byte) bool, error) {
	r, err := regexp.Compile(`\A(?:` + m.GetRegex() + `)\z`)
	if err != nil {
		return nil, fmt.Errorf("safe_regex: %w", err)
	}
	return r.Match, nil
}

// headerConditions returns a condition for each of Envoy's HeaderMatchers.
func headerConditions(l layout, matchers []*routev3.HeaderMatcher, why string) ([]condition, error) {
	var conditions []condition
	for _, m := range matchers {
		get, err := header(l, m.GetName(), why)
		if err != nil {
			return nil, err
		}
		is, err := headerTest(m)
		if err != nil {
			return nil, fmt.Errorf("%s: header %s: %w", why, m.GetName(), err)
		}
		conditions = append(conditions, func(values [][]byte) bool {
			value, there := get(values)
			return is(value, there)
		})
	}
	return conditions, nil
}

func headerTest(m *routev3.HeaderMatcher) (test, error) {
	is, err := presentTest(m)
	if err != nil {
		return nil, err
	}
	empty, invert := m.GetTreatMissingHeaderAsEmpty(), m.GetInvertMatch()
	_, presence := m.GetHeaderMatchSpecifier().(*routev3.HeaderMatcher_PresentMatch)
	presence = presence || m.GetHeaderMatchSpecifier() == nil
	return func(value []byte, there bool) bool {
		there = there || empty
		if !there && !presence {
			return false // also if it is inverted, as Envoy has it
		}
		return is(value, there) != invert
	}, nil
}

// presentTest is headerTest without what inverts it.
func presentTest(m *routev3.HeaderMatcher) (test, error) {
	var s *matcherv3.StringMatcher
	switch p := m.GetHeaderMatchSpecifier().(type) {
	case nil:
		return func(_ []byte, there bool) bool { return there }, nil
	case *routev3.HeaderMatcher_PresentMatch:
		return func(_ []byte, there bool) bool { return there == p.PresentMatch }, nil
	case *routev3.HeaderMatcher_RangeMatch:
		from, to := p.RangeMatch.GetStart(), p.RangeMatch.GetEnd()
		return func(value []byte, _ bool) bool {
			n, err := strconv.ParseInt(string(value), 10, 64)
			return err == nil && n >= from && n < to
		}, nil
	case *routev3.HeaderMatcher_StringMatch:
		s = p.StringMatch
	case *routev3.HeaderMatcher_ExactMatch:
		s = &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: p.ExactMatch}} //nolint:staticcheck // deprecated, and still in use
	case *routev3.HeaderMatcher_PrefixMatch:
		s = &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: p.PrefixMatch}} //nolint:staticcheck // deprecated, and still in use
	case *routev3.HeaderMatcher_SuffixMatch:
		s = &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: p.SuffixMatch}} //nolint:staticcheck // deprecated, and still in use
	case *routev3.HeaderMatcher_ContainsMatch:
		s = &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Contains{Contains: p.ContainsMatch}} //nolint:staticcheck // deprecated, and still in use
	case *routev3.HeaderMatcher_SafeRegexMatch:
		s = &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: p.SafeRegexMatch}} //nolint:staticcheck // deprecated, and still in use
	}
	is, err := stringTest(s)
	if err != nil {
		return nil, err
	}
	return func(value []byte, _ bool) bool { return is(value) }, nil
}

// queryConditions returns a condition for each of Envoy's QueryParameterMatchers.
func queryConditions(l layout, matchers []*routev3.QueryParameterMatcher, why string) ([]condition, error) {
	var conditions []condition
	for _, m := range matchers {
		get, err := query(l, m.GetName(), why)
		if err != nil {
			return nil, err
		}
		is := func(_ []byte, there bool) bool { return there }
		switch p := m.GetQueryParameterMatchSpecifier().(type) {
		case *routev3.QueryParameterMatcher_PresentMatch:
			is = func(_ []byte, there bool) bool { return there == p.PresentMatch }
		case *routev3.QueryParameterMatcher_StringMatch:
			s, err := stringTest(p.StringMatch)
			if err != nil {
				return nil, fmt.Errorf("%s: parameter %s: %w", why, m.GetName(), err)
			}
			is = func(value []byte, there bool) bool { return there && s(value) }
		}
		conditions = append(conditions, func(values [][]byte) bool { return is(get(values)) })
	}
	return conditions, nil
}

// routeCondition returns the condition of Envoy's RouteMatch; nil means that there is none.
func routeCondition(l layout, m *routev3.RouteMatch, why string) (condition, error) {
	if m == nil {
		return all(nil), nil
	}
	for name, there := range map[string]bool{
		"runtime_fraction": m.GetRuntimeFraction() != nil, "grpc": m.GetGrpc() != nil, "tls_context": m.GetTlsContext() != nil,
		"dynamic_metadata": len(m.GetDynamicMetadata()) > 0, "filter_state": len(m.GetFilterState()) > 0, "cookies": len(m.GetCookies()) > 0,
	} {
		if there {
			return nil, fmt.Errorf("%s: whether %s matches cannot be told from a log: leave it out, and the route with it where it would match too much", why, name)
		}
	}
	conditions, err := headerConditions(l, m.GetHeaders(), why)
	if err != nil {
		return nil, err
	}
	more, err := queryConditions(l, m.GetQueryParameters(), why)
	if err != nil {
		return nil, err
	}
	conditions = append(conditions, more...)
	if p, ok := m.GetPathSpecifier().(*routev3.RouteMatch_Prefix); ok && p.Prefix == "/" {
		return all(conditions), nil
	}
	is, err := pathTest(m)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", why, err)
	}
	path, err := header(l, headerPath, why)
	if err != nil {
		return nil, err
	}
	onPath := func(values [][]byte) bool {
		text, _ := path(values)
		if i := bytes.IndexAny(text, "?#"); i >= 0 {
			text = text[:i]
		}
		return is(text)
	}
	return all(append([]condition{onPath}, conditions...)), nil
}

func pathTest(m *routev3.RouteMatch) (func([]byte) bool, error) {
	fold := m.GetCaseSensitive() != nil && !m.GetCaseSensitive().GetValue()
	s := &matcherv3.StringMatcher{IgnoreCase: fold}
	switch p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		s.MatchPattern = &matcherv3.StringMatcher_Prefix{Prefix: p.Prefix}
	case *routev3.RouteMatch_Path:
		s.MatchPattern = &matcherv3.StringMatcher_Exact{Exact: p.Path}
	case *routev3.RouteMatch_SafeRegex:
		return regexTest(p.SafeRegex)
	case *routev3.RouteMatch_PathSeparatedPrefix:
		s.MatchPattern = &matcherv3.StringMatcher_Prefix{Prefix: p.PathSeparatedPrefix}
		begins, err := stringTest(s)
		n := len(p.PathSeparatedPrefix)
		return func(path []byte) bool { return begins(path) && (len(path) == n || path[n] == '/') }, err
	default:
		return nil, fmt.Errorf("a route matches by prefix, path, safe_regex or path_separated_prefix here, not by %s", m)
	}
	return stringTest(s)
}

// hostRank says how well a host matches a domain of a virtual host: 0 not at all, and the higher the better, in Envoy's order:
// the host itself, then the longest suffix, then the longest prefix, then all.
func hostRank(domain, host string) int {
	const suffix, prefix, exact = 2, 1 << 20, 1 << 30
	domain, host = strings.ToLower(domain), strings.ToLower(host)
	switch {
	case domain == "*":
		return 1
	case domain == host:
		return exact
	case strings.HasPrefix(domain, "*") && strings.HasSuffix(host, domain[1:]) && len(host) >= len(domain):
		return prefix + len(domain)
	case strings.HasSuffix(domain, "*") && strings.HasPrefix(host, domain[:len(domain)-1]) && len(host) >= len(domain):
		return suffix + len(domain)
	}
	return 0
}
