package rulefile

import (
	"math"
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
	KeyStart              = "start"
	KeyPercentile         = "percentile"
	KeyMin                = "min"
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
	InEstimate         // estimate
	InCalendar         // calendar
	InIgnored          // inside of a key that has no effect
)

// Kind is the type of a key's value.
type Kind uint8

// The kinds.
const (
	KindText     Kind = iota
	KindName          // text that is not empty
	KindWord          // one of Words
	KindTime          // a length of time
	KindNumber        // from Min to Max
	KindFlag          // a boolean
	KindSwitch        // a map with the keys of Inner, of which true is an empty one; false means that the key is absent
	KindMap           // a map with the keys of Inner
	KindList          // a list; of maps with the keys of Inner, if that is set
	KindMetadata      // a map of any values
)

// Type describes the values of a key.
type Type struct {
	Kind     Kind
	Words    []string // accepted words
	Min, Max uint64   // bounds of a number
	Inner    Place    // of a map, even if the key also takes values of another kind
}

// row is a row of the grammar: a key, the places where it has an effect, and its values. In all other places, keys of envoyproxy/ratelimit
// are accepted with a warning. An extension key with other values in other places has several rows. Code that reads, formats, or describes
// rules gets all information about a key from here.
type row struct {
	Name  string
	Where Place
	Rank  int // in formatted files, keys with lower ranks come first; equal ranks keep the order of the grammar
	Type

	About string // a sentence for editors
}

// Keyword is a row of the grammar with its place there.
type Keyword struct {
	row

	OfReference bool
	Index       int // in Keywords
}

// Keywords returns the grammar.
func Keywords() (table []Keyword) {
	reference := referenceRows()
	for i, r := range slices.Concat(reference, limitRows(), innerRows()) {
		if i < len(reference) {
			r.Where |= InIgnored
		}
		table = append(table, Keyword{row: r, OfReference: i < len(reference), Index: i})
	}
	return table
}

// referenceRows returns the keys of envoyproxy/ratelimit.
func referenceRows() []row {
	text, name, flag := Type{Kind: KindText}, Type{Kind: KindName}, Type{Kind: KindFlag}
	return []row{
		{KeyDomain, InRoot, -3, name, "The name of the domain in requests."},
		{KeyDescriptors, InRoot | InDescriptor, 1, listOf(InDescriptor), "The next level of the tree: an entry of a request leads to the descriptor with its key and value, or else to the first wildcard that matches, or else to the one with only its key."},
		{KeyKey, InDescriptor, -3, name, "The key of an entry; a * stands for any text."},
		{KeyValue, InDescriptor, -3, text, "The value of the entry; a * stands for any text. Without a value, any value matches, each with its own counter."},
		{KeyRateLimit, InDescriptor, 0, mapOf(InLimit), "The limit; a descriptor without one is not limited."},
		{KeyUnit, InLimit | InItem, -3, text, "The unit of the window, in upper or lower case."},
		{KeyRequestsPerUnit, InLimit | InItem, 0, numbers(0, engine.MaxLimit), "The number of hits per window; if missing or 0, every request is rejected."},
		{KeyUnlimited, InLimit | InItem, 0, flag, "Never rejects; unit must not be set."}, // in an item, it is only rejected with a reason
		{KeyName, InLimit | InItem | InReplaces, 0, text, "The name of the limit in answers, and in replaces of other limits."},
		{KeyReplaces, InLimit | InItem, 0, listOf(InReplaces), "Limits, by their names, that do not count if this one applies to the same request."},
		{KeyShadowMode, InDescriptor, -1, flag, "Counts and reports, but never rejects."},
		{KeyQuotaMode, InDescriptor, -1, flag, "Rejects a request only if all its other descriptors in quota mode reject it too."},
		{KeyDetailedMetric, InDescriptor, -1, flag, "The metric's name contains the values of all entries of the request."},
		{KeyValueToMetric, InDescriptor, -1, flag, "The metric's name contains the value of this entry."},
		{KeyShareThreshold, InDescriptor, -2, flag, "All values that match the wildcard share one counter."},
		{KeyMetadata, InDescriptor, -1, Type{Kind: KindMetadata}, "Added to the dynamic metadata of the answer if the limit admits."},
	}
}

// limitRows returns our keys, except those of innerRows.
func limitRows() []row {
	name, flag := Type{Kind: KindName}, Type{Kind: KindFlag}
	rows := []row{
		{KeyCharge, InRoot, 0, words("each", "together"), "What a request with several descriptors pays: each counts separately, or nothing is spent if one of them rejects."},
		{KeyAllowLimitOverride, InRoot, 0, flag, "Whether a request may carry limits of its own; true by default."},
		{KeyQuotaGroupBy, InRoot, 0, listOf(0), "Entry keys that group descriptors in quota mode by value. A group is over when one of its limits is exceeded; a request is rejected when all its groups are over."},
		{KeyRateLimits, InDescriptor, 0, listOf(InItem), "Several limits, up to 16. All must admit a request; otherwise nothing is counted."},
		{KeyAlgorithm, InLimit | InItem, 0, words(names(slices.Collect(engine.Algorithms()))...), "How hits are counted; fixed_window by default."},
		{KeyUnitMultiplier, InLimit | InItem, -2, positive(), "The number of units in a window; 1 by default."},
	}
	for p := range engine.Parameters() {
		rows = append(rows, row{p.String(), InLimit | InItem, 0, typeOf(p), p.About() + " For " + AlgorithmList(p.Takers()) + "."})
	}
	return append(rows, []row{
		{KeyOnFailure, InLimit | InDescriptor, 0, words("error", "allow", "deny", "local"), "The fallback while the backend fails; local counts in this process."},
		{KeyPenalty, InLimit | InDescriptor, 0, mapOf(InPenalty), "Rejects everything for a while once the limit is exceeded or reached."},
		{KeyHolder, InLimit | InDescriptor, 0, name, "The key, of this descriptor or of one above it, whose value identifies the holder of a slot."},
		{KeyLease, InLimit | InDescriptor, 0, words(HeadersOff, "auto"), "How many hits a server fetches in advance for a hot counter in Redis: off, auto or a number."},
		{KeyPlanOf, InDescriptor, 0, name, "The key of the entry whose value names the tenant."},
		{KeyPlans, InDescriptor, 0, mapOf(0), "The limits of each plan, by the plan's name."},
		{KeyHeaders, InLimit | InDescriptor, 0, words(HeadersOn, HeadersOff), "With off, answers do not show the numbers of this rule."},
	}...)
}

// innerRows returns reserve, rlqs, and the keys in maps of a limit.
func innerRows() []row {
	name, span := Type{Kind: KindName}, Type{Kind: KindTime}
	return []row{
		{KeyFor, InPenalty, 0, span, "How long the penalty lasts."},
		{KeyOn, InPenalty, 0, words(engine.OnExceeded.String(), engine.OnReached.String()), "What starts the penalty: a hit that is rejected (exceeded), or the one that uses up the limit (reached)."},
		{KeyEscalate, InPenalty, 0, positive(), "The factor by which each penalty is longer than the previous one."},
		{KeyReserve, InLimit, 0, mapOf(InReserve), "Reserves hits when a request arrives, and settles them once their true cost is known."},
		{KeyTTL, InReserve, 0, span, "How long hits stay reserved."},
		{KeyEstimate, InReserve, 0, Type{Kind: KindNumber, Min: 1, Max: math.MaxUint32, Inner: InEstimate}, "How many hits to reserve for a request that does not set a number: a number, or a map, for a percentile of the true costs."},
		{KeyStart, InEstimate, 0, positive(), "The estimate until 20 true costs are known."},
		{KeyPercentile, InEstimate, 0, numbers(1, 100), "The percentile of the last 256 true costs that is the estimate; 90 by default."},
		{KeyMin, InEstimate, 0, positive(), "The smallest estimate."},
		{KeyMax, InPenalty, 0, span, "The maximum length of a penalty."},
		{KeyMax, InEstimate, 0, positive(), "The largest estimate."},
		{KeyOnExpiry, InReserve, 0, words(ExpiryKeep, ExpiryReturn), "What happens to hits that are not settled in time."},
		{KeyEntry, InReserve, 0, name, "The key of the entry that settles."},
		{KeyBy, InReserve, 0, name, "The key, of this descriptor or of one above it and without a value, whose value is the same in both calls of a request."},
		{KeyRLQS, InLimit, 0, Type{Kind: KindSwitch, Inner: InRLQS}, "Divides the limit among Envoys that decide locally (RLQS)."},
		{KeyMode, InRLQS, 0, words("strict", "fast"), "What a divided limit guarantees: strict never admits more, fast follows demand and does not apply to fixed_window."},
		{KeyWeightFrom, InRLQS, 0, name, "The metadata key with the weight of a client."},
		{KeyMonth, InCalendar, 0, numbers(1, 12), "The month in which windows of a year begin; 1 by default."},
		{KeyDay, InCalendar, 0, numbers(1, 31), "The day of the month on which windows begin; 1 by default. In months without that day it is the last one."},
		{KeyWeekday, InCalendar, 0, numbers(1, 7), "The day on which windows of a week begin: 1, the default, is Monday."},
		{KeyHour, InCalendar, 0, numbers(0, 23), "The hour at which windows begin, by the clocks of the time zone; 0 by default."},
	}
}

func numbers(minimum, maximum uint64) Type { return Type{Kind: KindNumber, Min: minimum, Max: maximum} }
func positive() Type                       { return numbers(1, math.MaxUint32) }
func words(all ...string) Type             { return Type{Kind: KindWord, Words: all} }
func mapOf(keys Place) Type                { return Type{Kind: KindMap, Inner: keys} }
func listOf(keys Place) Type               { return Type{Kind: KindList, Inner: keys} }

// typeOf describes the values of a parameter of algorithms.
func typeOf(p engine.Parameter) Type {
	least, most := p.Bounds()
	kind := map[engine.Kind]Kind{
		engine.KindNumber: KindNumber, engine.KindFlag: KindFlag, engine.KindTime: KindTime, engine.KindWord: KindWord, engine.KindZone: KindName,
	}[p.Kind()]
	inner := map[engine.Parameter]Place{engine.ParamCalendar: InCalendar}[p]
	return Type{Kind: kind, Words: p.Words(), Min: least, Max: most, Inner: inner}
}

// Grammar maps names to rows. Each Load builds one.
type Grammar map[string][]*Keyword

// NewGrammar returns the keywords by name.
func NewGrammar() Grammar {
	g, table := Grammar{}, Keywords()
	for i := range table {
		g[table[i].Name] = append(g[table[i].Name], &table[i])
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
		"the top level", "a descriptor", "rate_limit", "an item of rate_limits", "an item of replaces", "penalty", "reserve", "rlqs", "estimate", "calendar", "a place without effect",
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
	return []string{"second", "minute", "hour", "day", "month", "year", "week", "forever"}
}

// AlgorithmList lists names of algorithms for messages.
func AlgorithmList(all []engine.Algorithm) string { return strings.Join(names(all), ", ") }

func names(all []engine.Algorithm) []string {
	names := make([]string, len(all))
	for i, a := range all {
		names[i] = a.String()
	}
	return names
}
