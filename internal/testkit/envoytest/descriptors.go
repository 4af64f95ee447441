package envoytest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	rlcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// Sends returns an error unless a request exists for which limits produce these descriptors, in order and each from a different limit.
// They may produce others too.
func Sends(limits []*routev3.RateLimit, sent []*rlcommonv3.RateLimitDescriptor) error {
	for _, d := range sent {
		i := slices.IndexFunc(limits, func(l *routev3.RateLimit) bool { return makes(l, d) })
		if i < 0 {
			return fmt.Errorf("no rate limit of Envoy, or none after the one before, makes the descriptor %v", d)
		}
		limits = limits[i+1:]
	}
	return nil
}

// makes reports whether a request exists for which l produces d. Hits of 0 are a check, which operators may send too.
func makes(l *routev3.RateLimit, d *rlcommonv3.RateLimitDescriptor) bool {
	h := l.GetHitsAddend()
	if n := d.GetHitsAddend(); n.GetValue() > 0 {
		if n.GetValue() != h.GetNumber().GetValue() && h.GetFormat() == "" || d.GetIsNegativeHits() != h.GetIsNegativeHits() {
			return false
		}
	} else if n == nil && h != nil {
		return false
	}
	entries := d.GetEntries()
	for _, a := range l.GetActions() {
		key, value := entryOf(a)
		if len(entries) > 0 && entries[0].GetKey() == key && value(entries[0].GetValue()) {
			entries = entries[1:]
		} else if !a.GetRequestHeaders().GetSkipIfAbsent() && !a.GetMetadata().GetSkipIfAbsent() && !a.GetQueryParameters().GetSkipIfAbsent() {
			return false
		}
	}
	return len(entries) == 0
}

// entryOf returns the key of the entry that an action produces, and a function that reports whether a value is possible. The key is empty
// for actions that this package does not support.
func entryOf(a *routev3.RateLimit_Action) (key string, may func(value string) bool) {
	any := func(value string) bool { return value != "" }
	is := func(want string) func(string) bool { return func(value string) bool { return value == want } }
	switch a := a.GetActionSpecifier().(type) {
	case *routev3.RateLimit_Action_RequestHeaders_:
		return a.RequestHeaders.GetDescriptorKey(), any
	case *routev3.RateLimit_Action_QueryParameters_:
		return a.QueryParameters.GetDescriptorKey(), any
	case *routev3.RateLimit_Action_Metadata:
		return a.Metadata.GetDescriptorKey(), any
	case *routev3.RateLimit_Action_GenericKey_:
		return cmp.Or(a.GenericKey.GetDescriptorKey(), "generic_key"), is(a.GenericKey.GetDescriptorValue())
	case *routev3.RateLimit_Action_HeaderValueMatch_:
		return cmp.Or(a.HeaderValueMatch.GetDescriptorKey(), "header_match"), is(a.HeaderValueMatch.GetDescriptorValue())
	case *routev3.RateLimit_Action_QueryParameterValueMatch_:
		return cmp.Or(a.QueryParameterValueMatch.GetDescriptorKey(), "query_match"), is(a.QueryParameterValueMatch.GetDescriptorValue())
	case *routev3.RateLimit_Action_RemoteAddressMatch_:
		return cmp.Or(a.RemoteAddressMatch.GetDescriptorKey(), "remote_address_match"), is(a.RemoteAddressMatch.GetDescriptorValue())
	case *routev3.RateLimit_Action_RemoteAddress_:
		return "remote_address", func(value string) bool { _, err := netip.ParseAddr(value); return err == nil }
	case *routev3.RateLimit_Action_MaskedRemoteAddress_:
		return "masked_remote_address", func(value string) bool { return masks(a.MaskedRemoteAddress, value) }
	}
	return "", any
}

// masks reports whether value is an address after masking by the action.
func masks(a *routev3.RateLimit_Action_MaskedRemoteAddress, value string) bool {
	p, err := netip.ParsePrefix(value)
	if err != nil || p != p.Masked() {
		return false
	}
	length, all := a.GetV6PrefixMaskLen(), 128
	if p.Addr().Is4() {
		length, all = a.GetV4PrefixMaskLen(), 32
	}
	if length != nil {
		all = int(length.GetValue())
	}
	return p.Bits() == all
}
