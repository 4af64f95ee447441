package descriptors

import (
	"math"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// wording is what those who write rules are told of a key, and what its value may be.
type wording struct {
	takes shape  // for the schema
	about string // a sentence for editors
}

// wordings has a row for each key, except for the parameters of the algorithms, which have theirs in pkg/engine.
func wordings() map[string]wording {
	return map[string]wording{
		kwDomain:             {nonEmpty, "The name of the domain in requests."},
		kwDescriptors:        {listOf(inDescriptor), "The next level of the tree: an entry of a request leads to the descriptor with its key and value, or else to the first wildcard that fits, or else to the one with its key alone."},
		kwKey:                {nonEmpty, "The key of an entry; a * stands for any text."},
		kwValue:              {someText, "The value of the entry; a * stands for any text, and without it any value matches, each with a counter of its own."},
		kwRateLimit:          {mapOf(inLimit), "The limit; a descriptor without one is not limited."},
		kwUnit:               {unitText, "The unit of the window, in upper or lower case."},
		kwRequestsPerUnit:    {numberFrom(0, math.MaxUint32), "The number of hits per window; without it, or with 0, everything is refused."},
		kwUnlimited:          {someFlag, "Never refuses; there must be no unit."},
		kwName:               {nameIn, "The name of the limit in answers, and for replaces of other limits."},
		kwReplaces:           {listOf(inReplaces), "Limits, by their names, that do not count if this one applies to the same request."},
		kwShadowMode:         {someFlag, "Counts and reports, but never refuses."},
		kwQuotaMode:          {someFlag, "Refuses a request only together with all its other descriptors in quota mode."},
		kwDetailedMetric:     {someFlag, "The name of the metric contains the values of all entries of the request."},
		kwValueToMetric:      {someFlag, "The name of the metric contains the value of this entry."},
		kwShareThreshold:     {someFlag, "All values that match the wildcard share one counter."},
		kwMetadata:           {anyMap, "Added to the dynamic metadata of the answer if the limit admits."},
		kwCharge:             {words("each", "together"), "What a request with several descriptors pays: each counts separately, or nothing is spent if one of them refuses."},
		kwAllowLimitOverride: {someFlag, "Whether a request may have limits of its own; true unless said otherwise."},
		kwQuotaGroupBy:       {quotaKeys, "The keys of entries by whose values descriptors in quota mode form groups; a group is over as soon as one of its limits is, and a request is refused once all its groups are."},
		kwRateLimits:         {itemList, "Several limits, up to 16, all of which have to admit a request; otherwise nothing is counted."},
		kwOnFailure:          {words(FailError.String(), FailAllow.String(), FailDeny.String(), FailLocal.String()), "What to answer while the store of counters fails; local counts in this process."},
		kwPenalty:            {mapOf(inPenalty), "Refuses everything for a while once the limit is exceeded or reached."},
		kwHolder:             {nonEmpty, "The key, of this descriptor or of one above it, whose value identifies the holder of a slot."},
		kwLease:              {leaseShape, "How many hits a server fetches in advance for a hot counter in Redis: off, auto or a number."},
		kwHeaders:            {words(headersOn, headersOff), "With off, callers are not told the numbers of this rule."},
		kwFor:                {someTime, "How long the penalty lasts."},
		kwOn:                 {words(engine.OnExceeded.String(), engine.OnReached.String()), "What starts the penalty: a hit that is refused (exceeded), or the one that uses up the limit (reached)."},
		kwEscalate:           {numberFrom(1, math.MaxUint32), "The factor by which each penalty is longer than the previous one."},
		kwMax:                {someTime, "The longest that a penalty can become."},
		kwPlanOf:             {nonEmpty, "The key of the entry whose value is on one of the plans."},
		kwPlans:              {plansShape, "The limits of each plan, by the plan's name."},
		kwReserve:            {mapOf(inReserve), "Reserves hits when a request comes, and settles them once their true cost is known."},
		kwTTL:                {someTime, "How long hits stay reserved."},
		kwEstimate:           {numberFrom(1, math.MaxUint32), "How many hits a request reserves that does not say."},
		kwOnExpiry:           {words(expiryKeep, expiryReturn), "What becomes of hits that nobody has settled in time."},
		kwEntry:              {nonEmpty, "The key of the entry that settles."},
		kwAlgorithm:          {algorithmShape, "How hits are counted; fixed_window unless said otherwise."},
		kwUnitMultiplier:     {numberFrom(1, math.MaxUint32), "The number of units in a window; 1 unless said otherwise."},
	}
}

// wordingOf returns what is said of a key; nothing if it has no row.
func wordingOf(all map[string]wording, key string) wording {
	for p := range engine.Parameters() {
		if p.String() == key {
			return wording{parameterShape(p), p.About() + " For " + algorithmList(p.Takers()) + "."}
		}
	}
	return all[key]
}
