package recorded

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	metadatav3 "github.com/envoyproxy/go-control-plane/envoy/type/metadata/v3"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/replay"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// bind returns what asks as Envoy's filter would.
func (c *envoyConfig) bind(l layout) (asker, error) {
	var authority getter
	if len(c.hosts) > 1 || len(c.hosts[0].domains) != 1 || c.hosts[0].domains[0] != "*" {
		var err error
		if authority, err = header(l, headerHost, "choosing a virtual host"); err != nil {
			return nil, err
		}
	}
	hosts := make([][]boundRoute, len(c.hosts))
	for i, h := range c.hosts {
		for _, r := range h.routes {
			b, err := r.bind(l, c.domain)
			if err != nil {
				return nil, err
			}
			hosts[i] = append(hosts[i], b)
		}
	}
	return func(values [][]byte) (asked, error) {
		host := 0
		if authority != nil {
			name, _ := authority(values)
			if host = c.host(string(name)); host < 0 {
				return asked{}, nil
			}
		}
		for i := range hosts[host] {
			if r := &hosts[host][i]; r.matches(values) {
				return r.asked(values), nil
			}
		}
		return asked{}, nil
	}, nil
}

// host returns the index of the virtual host of a request; −1 if there is none.
func (c *envoyConfig) host(name string) int {
	best, rank := -1, 0
	for i, h := range c.hosts {
		for _, d := range h.domains {
			if r := hostRank(d, name); r > rank {
				best, rank = i, r
			}
		}
	}
	return best
}

// boundRoute is a route whose values have been found.
type boundRoute struct {
	domain  []byte
	matches condition
	limits  []boundLimit
}

// boundLimit makes a descriptor.
type boundLimit struct {
	entries  []entryMaker
	hits     getter // nil if there is no hits_addend
	negative bool
	done     bool // when the request has ended
	response bool // hits depend on the response
	override *descriptors.Override
}

// made says what became of an entry.
type made uint8

const (
	isMade    made = iota
	isSkipped      // the descriptor goes without it
	isMissing      // there is no descriptor
)

type entryMaker func(values [][]byte) (descriptors.Entry, made)

func (r *envoyRoute) bind(l layout, domain string) (b boundRoute, err error) {
	if r.domain != "" {
		domain = r.domain
	}
	b.domain = []byte(domain)
	if b.matches, err = routeCondition(l, r.match, r.place); err != nil {
		return b, err
	}
	for i, limit := range r.limits {
		bound, err := bindLimit(l, limit, r.cluster)
		if err != nil {
			return b, fmt.Errorf("%s: rate limit %d: %w", r.place, i+1, err)
		}
		b.limits = append(b.limits, bound)
	}
	return b, nil
}

// asked makes the requests of a route.
func (r *boundRoute) asked(values [][]byte) asked {
	var now, always, passed []limiter.Descriptor
	for i := range r.limits {
		limit := &r.limits[i]
		d, ok := limit.descriptor(values)
		switch {
		case !ok:
		case !limit.done:
			now = append(now, d)
		case limit.response:
			passed = append(passed, d)
		default:
			always = append(always, d)
		}
	}
	request := func(all []limiter.Descriptor) *limiter.Request {
		if len(all) == 0 {
			return nil
		}
		return &limiter.Request{Domain: r.domain, Descriptors: all}
	}
	out := asked{request: request(now)}
	if len(always)+len(passed) > 0 {
		out.charge = &replay.Charge{Always: request(always), Passed: request(passed)}
	}
	return out
}

func (b *boundLimit) descriptor(values [][]byte) (d limiter.Descriptor, ok bool) {
	for _, entry := range b.entries {
		switch e, what := entry(values); what {
		case isMissing:
			return d, false
		case isSkipped:
		case isMade:
			d.Entries = append(d.Entries, descriptors.Entry{Key: e.Key, Value: bytes.Clone(e.Value)})
		}
	}
	if b.hits != nil {
		text, there := b.hits(values)
		n, err := strconv.ParseUint(string(text), 10, 64)
		if !there || err != nil || n > maxHitsAddend {
			return d, false
		}
		d.Hits, d.HasHits = n, true
	}
	d.Negative = b.negative
	if b.override != nil {
		d.HasOverride, d.Override = true, *b.override
	}
	return d, len(d.Entries) > 0
}

func bindLimit(l layout, limit *routev3.RateLimit, cluster string) (b boundLimit, err error) {
	b.done = limit.GetApplyOnStreamDone()
	for _, action := range limit.GetActions() {
		maker, err := bindAction(l, action, cluster)
		if err != nil {
			return b, err
		}
		b.entries = append(b.entries, maker)
	}
	if h := limit.GetHitsAddend(); h != nil {
		b.negative = h.GetIsNegativeHits()
		switch {
		case h.GetNumber() != nil:
			fixed := []byte(strconv.FormatUint(h.GetNumber().GetValue(), 10))
			b.hits = func([][]byte) ([]byte, bool) { return fixed, true }
		case h.GetFormat() != "":
			if b.hits, err = substitution(l, h.GetFormat(), "hits_addend"); err != nil {
				return b, err
			}
			b.response = onResponse(h.GetFormat())
		}
	}
	switch o := limit.GetLimit().GetOverrideSpecifier().(type) {
	case *routev3.RateLimit_Override_RateLimit:
		b.override = &descriptors.Override{
			RequestsPerUnit: o.RateLimit.GetRequestsPerUnit(), Unit: descriptors.ParseUnit(strings.ToLower(o.RateLimit.GetUnit().String())),
		}
	case *routev3.RateLimit_Override_DynamicMetadata_:
		return b, fmt.Errorf("limit: what %s has is not in a log: leave limit out to use the rules' own limits", metadataOperator(o.DynamicMetadata.GetMetadataKey()))
	}
	return b, nil
}

// onResponse reports whether a format has an operator that the answer of the application alone gives a value.
func onResponse(format string) bool {
	pieces, _ := parseFormat(format)
	for _, p := range pieces {
		if p.op != nil && (p.op.name == opResponse || p.op.name == opTrailer) {
			return true
		}
	}
	return false
}

// valued returns the maker of an entry whose value is got from a line. Where there is none, fallback takes its place, unless it
// is empty.
func valued(key string, get getter, fallback string, skip bool) entryMaker {
	return func(values [][]byte) (descriptors.Entry, made) {
		e := descriptors.Entry{Key: []byte(key)}
		value, ok := get(values)
		switch {
		case ok:
			e.Value = value
		case fallback != "":
			e.Value = []byte(fallback)
		case skip:
			return e, isSkipped
		default:
			return e, isMissing
		}
		return e, isMade
	}
}

// nonEmpty makes the empty value be none.
func nonEmpty(get getter) getter {
	return func(values [][]byte) ([]byte, bool) {
		v, _ := get(values)
		return v, len(v) > 0
	}
}

// bindAction returns what makes the entry of an action.
func bindAction(l layout, action *routev3.RateLimit_Action, cluster string) (entryMaker, error) {
	switch a := action.GetActionSpecifier().(type) {
	case *routev3.RateLimit_Action_GenericKey_:
		get, err := substitution(l, a.GenericKey.GetDescriptorValue(), "the action generic_key")
		return valued(cmp.Or(a.GenericKey.GetDescriptorKey(), "generic_key"), nonEmpty(get), a.GenericKey.GetDefaultValue(), false), err
	case *routev3.RateLimit_Action_RequestHeaders_:
		name := a.RequestHeaders.GetHeaderName()
		get, err := header(l, name, "the action request_headers of "+name)
		return valued(a.RequestHeaders.GetDescriptorKey(), get, "", a.RequestHeaders.GetSkipIfAbsent()), err
	case *routev3.RateLimit_Action_QueryParameters_:
		name := a.QueryParameters.GetQueryParameterName()
		get, err := query(l, name, "the action query_parameters of "+name)
		return valued(a.QueryParameters.GetDescriptorKey(), get, "", a.QueryParameters.GetSkipIfAbsent()), err
	case *routev3.RateLimit_Action_DestinationCluster_:
		return bindCluster(l, cluster)
	case *routev3.RateLimit_Action_HeaderValueMatch_:
		return bindHeaderMatch(l, a.HeaderValueMatch)
	case *routev3.RateLimit_Action_QueryParameterValueMatch_:
		return bindQueryMatch(l, a.QueryParameterValueMatch)
	case *routev3.RateLimit_Action_Metadata:
		m := a.Metadata
		op := metadataOperator(m.GetMetadataKey())
		if m.GetSource() == routev3.RateLimit_Action_MetaData_ROUTE_ENTRY {
			op = operator{name: opAnyMetadata, arg: "ROUTE:" + op.arg}
		}
		get, err := need(l, op, "the action metadata of "+m.GetDescriptorKey())
		return valued(m.GetDescriptorKey(), get, m.GetDefaultValue(), m.GetSkipIfAbsent()), err
	case *routev3.RateLimit_Action_DynamicMetadata:
		m := a.DynamicMetadata //nolint:staticcheck // deprecated, and still in use
		get, err := need(l, metadataOperator(m.GetMetadataKey()), "the action dynamic_metadata of "+m.GetDescriptorKey())
		return valued(m.GetDescriptorKey(), get, m.GetDefaultValue(), false), err
	case *routev3.RateLimit_Action_SourceCluster_:
		return nil, fmt.Errorf("the action source_cluster: a log does not have the cluster that Envoy itself is in (--service-cluster): " +
			"write it as generic_key: {descriptor_key: source_cluster, descriptor_value: NAME}")
	default:
		return bindAddress(l, action)
	}
}

// bindAddress binds the actions on the address of the client.
func bindAddress(l layout, action *routev3.RateLimit_Action) (entryMaker, error) {
	switch a := action.GetActionSpecifier().(type) {
	case *routev3.RateLimit_Action_RemoteAddress_:
		from, err := address(l, "the action remote_address")
		return valued("remote_address", addressText(from, func(a netip.Addr) string { return a.String() }), "", false), err
	case *routev3.RateLimit_Action_MaskedRemoteAddress_:
		from, err := address(l, "the action masked_remote_address")
		v4, v6 := 32, 128
		if n := a.MaskedRemoteAddress.GetV4PrefixMaskLen(); n != nil {
			v4 = int(n.GetValue())
		}
		if n := a.MaskedRemoteAddress.GetV6PrefixMaskLen(); n != nil {
			v6 = int(n.GetValue())
		}
		return valued("masked_remote_address", addressText(from, func(a netip.Addr) string {
			bits := v6
			if a.Is4() {
				bits = v4
			}
			prefix, _ := a.WithZone("").Prefix(bits)
			return prefix.String()
		}), "", false), err
	case *routev3.RateLimit_Action_RemoteAddressMatch_:
		return bindAddressMatch(l, a.RemoteAddressMatch)
	}
	return nil, fmt.Errorf("the action %v is not known here", action)
}

func addressText(from func([][]byte) (netip.Addr, bool), text func(netip.Addr) string) getter {
	return func(values [][]byte) ([]byte, bool) {
		a, ok := from(values)
		if !ok {
			return nil, false
		}
		return []byte(text(a)), true
	}
}

func bindAddressMatch(l layout, m *routev3.RateLimit_Action_RemoteAddressMatch) (entryMaker, error) {
	const why = "the action remote_address_match"
	from, err := address(l, why)
	if err != nil {
		return nil, err
	}
	var ranges []netip.Prefix
	for _, r := range m.GetAddressMatcher().GetRanges() {
		a, err := netip.ParseAddr(r.GetAddressPrefix())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", why, err)
		}
		prefix, err := a.Prefix(int(r.GetPrefixLen().GetValue()))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", why, err)
		}
		ranges = append(ranges, prefix)
	}
	return matching(l, m, "remote_address_match", !m.GetAddressMatcher().GetInvertMatch(), func(values [][]byte) bool {
		a, ok := from(values)
		for _, r := range ranges {
			if ok && r.Contains(a.WithZone("")) {
				return true
			}
		}
		return false
	})
}

func bindHeaderMatch(l layout, m *routev3.RateLimit_Action_HeaderValueMatch) (entryMaker, error) {
	conditions, err := headerConditions(l, m.GetHeaders(), "the action header_value_match")
	if err != nil {
		return nil, err
	}
	return matching(l, m, "header_match", m.GetExpectMatch() == nil || m.GetExpectMatch().GetValue(), all(conditions))
}

func bindQueryMatch(l layout, m *routev3.RateLimit_Action_QueryParameterValueMatch) (entryMaker, error) {
	conditions, err := queryConditions(l, m.GetQueryParameters(), "the action query_parameter_value_match")
	if err != nil {
		return nil, err
	}
	return matching(l, m, "query_match", m.GetExpectMatch() == nil || m.GetExpectMatch().GetValue(), all(conditions))
}

// described is an action that says what its entry is.
type described interface {
	GetDescriptorKey() string
	GetDescriptorValue() string
	GetDefaultValue() string
}

// matching makes the entry of an action only where a condition is as expected; else there is no descriptor. The key is usual unless
// the action says another one.
func matching(l layout, m described, usual string, expect bool, holds condition) (entryMaker, error) {
	get, err := substitution(l, m.GetDescriptorValue(), "descriptor_value of "+usual)
	if err != nil {
		return nil, err
	}
	maker := valued(cmp.Or(m.GetDescriptorKey(), usual), nonEmpty(get), m.GetDefaultValue(), false)
	return func(values [][]byte) (descriptors.Entry, made) {
		if holds(values) != expect {
			return descriptors.Entry{}, isMissing
		}
		return maker(values)
	}, nil
}

// bindCluster finds the cluster that a request goes to: in the log, or that of the route.
func bindCluster(l layout, cluster string) (entryMaker, error) {
	for _, name := range []string{opClusterRaw, opCluster} {
		if i, ok := l.find(operator{name: name}); ok {
			return valued("destination_cluster", at(i), cluster, false), nil
		}
	}
	if cluster != "" {
		fixed := []byte(cluster)
		return valued("destination_cluster", func([][]byte) ([]byte, bool) { return fixed, true }, "", false), nil
	}
	get, err := need(l, operator{name: opCluster}, "the action destination_cluster")
	return valued("destination_cluster", get, "", false), err
}

// metadataOperator returns the operator that writes a value of dynamic metadata.
func metadataOperator(k *metadatav3.MetadataKey) operator {
	parts := []string{k.GetKey()}
	for _, s := range k.GetPath() {
		parts = append(parts, s.GetKey())
	}
	return operator{name: opMetadata, arg: strings.Join(parts, ":")}
}
