package descriptors

import (
	"iter"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// The keys of envoyproxy/ratelimit.
const (
	kwDomain          = "domain"
	kwDescriptors     = "descriptors"
	kwKey             = "key"
	kwValue           = "value"
	kwRateLimit       = "rate_limit"
	kwUnit            = "unit"
	kwRequestsPerUnit = "requests_per_unit"
	kwUnlimited       = "unlimited"
	kwName            = "name"
	kwReplaces        = "replaces"
	kwShadowMode      = "shadow_mode"
	kwQuotaMode       = "quota_mode"
	kwDetailedMetric  = "detailed_metric"
	kwValueToMetric   = "value_to_metric"
	kwShareThreshold  = "share_threshold"
	kwMetadata        = "metadata"
)

// Our own keys.
const (
	kwCharge             = "charge"
	kwAllowLimitOverride = "allow_limit_override"
	kwQuotaGroupBy       = "quota_group_by"
	kwRateLimits         = "rate_limits"
	kwAlgorithm          = "algorithm"
	kwUnitMultiplier     = "unit_multiplier"
	kwOnFailure          = "on_failure"
	kwPenalty            = "penalty"
	kwHolder             = "holder"
	kwLease              = "lease"
	kwPlanOf             = "plan_of"
	kwPlans              = "plans"
	kwHeaders            = "headers"
	kwFor                = "for"
	kwOn                 = "on"
	kwEscalate           = "escalate"
	kwMax                = "max"
	kwReserve            = "reserve"
	kwTTL                = "ttl"
	kwEstimate           = "estimate"
	kwOnExpiry           = "on_expiry"
	kwEntry              = "entry"
)

// place is one of the maps of the grammar, or a set of several.
type place uint16

// The maps of the grammar.
const (
	inRoot       place = 1 << iota
	inDescriptor       // an element of descriptors
	inLimit            // rate_limit
	inItem             // an element of rate_limits
	inReplaces         // an element of replaces
	inPenalty          // penalty
	inReserve          // reserve
	inIgnored          // inside a key that has no effect
)

// keyword is a row of the grammar: a key, and where it has an effect. A key of envoyproxy/ratelimit is accepted, with a
// warning, in any other place too.
type keyword struct {
	name        string
	where       place
	ofReference bool
	index       int // in the table
}

// keywords is the grammar.
func keywords() []keyword {
	table := []keyword{
		{name: kwDomain, where: inRoot, ofReference: true},
		{name: kwDescriptors, where: inRoot | inDescriptor, ofReference: true},
		{name: kwKey, where: inDescriptor, ofReference: true},
		{name: kwValue, where: inDescriptor, ofReference: true},
		{name: kwRateLimit, where: inDescriptor, ofReference: true},
		{name: kwUnit, where: inLimit | inItem, ofReference: true},
		{name: kwRequestsPerUnit, where: inLimit | inItem, ofReference: true},
		{name: kwUnlimited, where: inLimit | inItem, ofReference: true}, // in an item only so that it is rejected with a reason
		{name: kwName, where: inLimit | inItem | inReplaces, ofReference: true},
		{name: kwReplaces, where: inLimit | inItem, ofReference: true},
		{name: kwShadowMode, where: inDescriptor, ofReference: true},
		{name: kwQuotaMode, where: inDescriptor, ofReference: true},
		{name: kwDetailedMetric, where: inDescriptor, ofReference: true},
		{name: kwValueToMetric, where: inDescriptor, ofReference: true},
		{name: kwShareThreshold, where: inDescriptor, ofReference: true},
		{name: kwMetadata, where: inDescriptor, ofReference: true},
		{name: kwCharge, where: inRoot},
		{name: kwAllowLimitOverride, where: inRoot},
		{name: kwQuotaGroupBy, where: inRoot},
		{name: kwRateLimits, where: inDescriptor},
	}
	for k := range OwnKeys() {
		table = append(table, keyword{name: k, where: inLimit | inItem})
	}
	table = append(table, []keyword{
		{name: kwOnFailure, where: inLimit | inDescriptor},
		{name: kwPenalty, where: inLimit | inDescriptor},
		{name: kwHolder, where: inLimit | inDescriptor},
		{name: kwLease, where: inLimit | inDescriptor},
		{name: kwPlanOf, where: inDescriptor},
		{name: kwPlans, where: inDescriptor},
		{name: kwHeaders, where: inLimit | inDescriptor},
		{name: kwFor, where: inPenalty},
		{name: kwOn, where: inPenalty},
		{name: kwEscalate, where: inPenalty},
		{name: kwMax, where: inPenalty},
		{name: kwReserve, where: inLimit},
		{name: kwTTL, where: inReserve},
		{name: kwEstimate, where: inReserve},
		{name: kwOnExpiry, where: inReserve},
		{name: kwEntry, where: inReserve},
	}...)
	for i := range table {
		table[i].index = i
		if table[i].ofReference {
			table[i].where |= inIgnored
		}
	}
	return table
}

// OwnKeys yields the keys of a limit that envoyproxy/ratelimit does not have: algorithm, unit_multiplier, and the
// parameters of the algorithms.
func OwnKeys() iter.Seq[string] {
	return func(yield func(string) bool) {
		if !yield(kwAlgorithm) || !yield(kwUnitMultiplier) {
			return
		}
		for p := range engine.Parameters() {
			if !yield(p.String()) {
				return
			}
		}
	}
}

// keywordSet is a set of keywords, by their index.
type keywordSet uint64

func (s *keywordSet) add(k keyword)     { *s |= 1 << k.index }
func (s keywordSet) has(k keyword) bool { return s&(1<<k.index) != 0 }

// grammar is the table by name, built once per Load.
type grammar map[string]keyword

func newGrammar() grammar {
	g := grammar{}
	for _, k := range keywords() {
		g[k.name] = k
	}
	return g
}

// keys returns the keys of a place.
func (p place) keys() (keys []string) {
	for _, k := range keywords() {
		if k.where&p != 0 {
			keys = append(keys, k.name)
		}
	}
	return keys
}

// accepted lists the keys of a place, for messages.
func (p place) accepted() string {
	keys := p.keys()
	if p == inItem {
		keys = slices.DeleteFunc(keys, func(k string) bool { return k == kwUnlimited })
	}
	return strings.Join(keys, ", ")
}

// String returns what messages call the place.
func (p place) String() string {
	var names []string
	for i, name := range []string{"the top level", "a descriptor", "rate_limit", "an item of rate_limits", "an item of replaces", "penalty", "reserve", "a place without effect"} {
		if p&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, " or ")
}

// similar returns the key of a place that name is probably a misspelling of, or "".
func (p place) similar(name string) string { return nearest(name, slices.Values(p.keys())) }
