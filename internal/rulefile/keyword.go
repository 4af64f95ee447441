package rulefile

import (
	"iter"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Keys of envoyproxy/ratelimit.
const (
	KeyDomain          = "domain"
	KeyDescriptors     = "descriptors"
	KeyKey             = "key"
	KeyValue           = "value"
	KeyRateLimit       = "rate_limit"
	KeyUnit            = "unit"
	KeyRequestsPerUnit = "requests_per_unit"
	KeyUnlimited       = "unlimited"
	KeyName            = "name"
	KeyReplaces        = "replaces"
	KeyShadowMode      = "shadow_mode"
	KeyQuotaMode       = "quota_mode"
	KeyDetailedMetric  = "detailed_metric"
	KeyValueToMetric   = "value_to_metric"
	KeyShareThreshold  = "share_threshold"
	KeyMetadata        = "metadata"
)

// Extension keys.
const (
	KeyCharge             = "charge"
	KeyAllowLimitOverride = "allow_limit_override"
	KeyQuotaGroupBy       = "quota_group_by"
	KeyRateLimits         = "rate_limits"
	KeyAlgorithm          = "algorithm"
	KeyUnitMultiplier     = "unit_multiplier"
	KeyOnFailure          = "on_failure"
	KeyPenalty            = "penalty"
	KeyHolder             = "holder"
	KeyLease              = "lease"
	KeyPlanOf             = "plan_of"
	KeyPlans              = "plans"
	KeyHeaders            = "headers"
	KeyFor                = "for"
	KeyOn                 = "on"
	KeyEscalate           = "escalate"
	KeyMax                = "max"
	KeyReserve            = "reserve"
	KeyRLQS               = "rlqs"
	KeyMode               = "mode"
	KeyWeightFrom         = "weight_from"
	KeyTTL                = "ttl"
	KeyEstimate           = "estimate"
	KeyOnExpiry           = "on_expiry"
	KeyEntry              = "entry"
	KeyBy                 = "by"
	KeyMonth              = "month"
	KeyDay                = "day"
	KeyWeekday            = "weekday"
	KeyHour               = "hour"
)

// Place is a set of maps of the grammar.
type Place uint16

// Maps of the grammar.
const (
	InRoot       Place = 1 << iota
	InDescriptor       // an element of descriptors
	InLimit            // rate_limit
	InItem             // an element of rate_limits
	InReplaces         // an element of replaces
	InPenalty          // penalty
	InReserve          // reserve
	InRLQS             // rlqs
	InCalendar         // calendar
	InIgnored          // inside of a key that has no effect
)

// Keyword is a row of the grammar: a key and the places where it has an effect. In all other places, keys of envoyproxy/ratelimit are
// accepted with a warning.
type Keyword struct {
	Name        string
	Where       Place
	OfReference bool
	Index       int // in Keywords
}

// Keywords returns the grammar.
func Keywords() []Keyword {
	table := []Keyword{
		{Name: KeyDomain, Where: InRoot, OfReference: true},
		{Name: KeyDescriptors, Where: InRoot | InDescriptor, OfReference: true},
		{Name: KeyKey, Where: InDescriptor, OfReference: true},
		{Name: KeyValue, Where: InDescriptor, OfReference: true},
		{Name: KeyRateLimit, Where: InDescriptor, OfReference: true},
		{Name: KeyUnit, Where: InLimit | InItem, OfReference: true},
		{Name: KeyRequestsPerUnit, Where: InLimit | InItem, OfReference: true},
		{Name: KeyUnlimited, Where: InLimit | InItem, OfReference: true}, // in an item, it is only rejected with a reason
		{Name: KeyName, Where: InLimit | InItem | InReplaces, OfReference: true},
		{Name: KeyReplaces, Where: InLimit | InItem, OfReference: true},
		{Name: KeyShadowMode, Where: InDescriptor, OfReference: true},
		{Name: KeyQuotaMode, Where: InDescriptor, OfReference: true},
		{Name: KeyDetailedMetric, Where: InDescriptor, OfReference: true},
		{Name: KeyValueToMetric, Where: InDescriptor, OfReference: true},
		{Name: KeyShareThreshold, Where: InDescriptor, OfReference: true},
		{Name: KeyMetadata, Where: InDescriptor, OfReference: true},
		{Name: KeyCharge, Where: InRoot},
		{Name: KeyAllowLimitOverride, Where: InRoot},
		{Name: KeyQuotaGroupBy, Where: InRoot},
		{Name: KeyRateLimits, Where: InDescriptor},
	}
	for k := range OwnKeys() {
		table = append(table, Keyword{Name: k, Where: InLimit | InItem})
	}
	table = append(table, []Keyword{
		{Name: KeyOnFailure, Where: InLimit | InDescriptor},
		{Name: KeyPenalty, Where: InLimit | InDescriptor},
		{Name: KeyHolder, Where: InLimit | InDescriptor},
		{Name: KeyLease, Where: InLimit | InDescriptor},
		{Name: KeyPlanOf, Where: InDescriptor},
		{Name: KeyPlans, Where: InDescriptor},
		{Name: KeyHeaders, Where: InLimit | InDescriptor},
		{Name: KeyFor, Where: InPenalty},
		{Name: KeyOn, Where: InPenalty},
		{Name: KeyEscalate, Where: InPenalty},
		{Name: KeyMax, Where: InPenalty},
		{Name: KeyReserve, Where: InLimit},
		{Name: KeyTTL, Where: InReserve},
		{Name: KeyEstimate, Where: InReserve},
		{Name: KeyOnExpiry, Where: InReserve},
		{Name: KeyEntry, Where: InReserve},
		{Name: KeyBy, Where: InReserve},
		{Name: KeyRLQS, Where: InLimit},
		{Name: KeyMode, Where: InRLQS},
		{Name: KeyWeightFrom, Where: InRLQS},
		{Name: KeyMonth, Where: InCalendar},
		{Name: KeyDay, Where: InCalendar},
		{Name: KeyWeekday, Where: InCalendar},
		{Name: KeyHour, Where: InCalendar},
	}...)
	for i := range table {
		table[i].Index = i
		if table[i].OfReference {
			table[i].Where |= InIgnored
		}
	}
	return table
}

// OwnKeys yields the extension keys of a limit: algorithm, unit_multiplier, and the parameters of the algorithms.
func OwnKeys() iter.Seq[string] {
	return func(yield func(string) bool) {
		if !yield(KeyAlgorithm) || !yield(KeyUnitMultiplier) {
			return
		}
		for p := range engine.Parameters() {
			if !yield(p.String()) {
				return
			}
		}
	}
}

// keywordSet is a set of keywords, by index.
type keywordSet uint64

func (s *keywordSet) add(k Keyword)     { *s |= 1 << k.Index }
func (s keywordSet) has(k Keyword) bool { return s&(1<<k.Index) != 0 }

// Grammar maps names to keywords. Each Load builds one.
type Grammar map[string]Keyword

// NewGrammar returns the keywords by name.
func NewGrammar() Grammar {
	g := Grammar{}
	for _, k := range Keywords() {
		g[k.Name] = k
	}
	return g
}

// keys returns the keys of a place.
func (p Place) keys() (keys []string) {
	for _, k := range Keywords() {
		if k.Where&p != 0 {
			keys = append(keys, k.Name)
		}
	}
	return keys
}

// accepted lists the keys of a place for messages.
func (p Place) accepted() string {
	keys := p.keys()
	if p == InItem {
		keys = slices.DeleteFunc(keys, func(k string) bool { return k == KeyUnlimited })
	}
	return strings.Join(keys, ", ")
}

// String returns the name of the place in messages.
func (p Place) String() string {
	var names []string
	for i, name := range []string{
		"the top level", "a descriptor", "rate_limit", "an item of rate_limits", "an item of replaces", "penalty", "reserve", "rlqs", "calendar", "a place without effect",
	} {
		if p&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, " or ")
}

// similar returns the key of a place that name is probably a misspelling of, or "".
func (p Place) similar(name string) string { return Nearest(name, slices.Values(p.keys())) }

// UnitWords returns the names of units in lower case.
func UnitWords() []string {
	return []string{"second", "minute", "hour", "day", "month", "year", "week"}
}

// AlgorithmList lists names of algorithms for messages.
func AlgorithmList(all []engine.Algorithm) string {
	names := make([]string, len(all))
	for i, a := range all {
		names[i] = a.String()
	}
	return strings.Join(names, ", ")
}
