package descriptors

import (
	"math"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// wording is what those who write rules are told of a key, what its value may be, and where it stands.
type wording struct {
	takes shape  // for the schema
	about string // a sentence for editors
	rank  int    // fmt puts keys in the order of their ranks, and those of one rank in that of the grammar
}

// wordings has a row for each key, except for the parameters of the algorithms, which have theirs in pkg/engine.
func wordings() map[string]wording {
	return map[string]wording{
		kwDomain:             {nonEmpty, "The name of the domain in requests.", -3},
		kwDescriptors:        {listOf(inDescriptor), "The next level of the tree: an entry of a request leads to the descriptor with its key and value, or else to the first wildcard that fits, or else to the one with its key alone.", 1},
		kwKey:                {nonEmpty, "The key of an entry; a * stands for any text.", -3},
		kwValue:              {someText, "The value of the entry; a * stands for any text, and without it any value matches, each with a counter of its own.", -3},
		kwRateLimit:          {mapOf(inLimit), "The limit; a descriptor without one is not limited.", 0},
		kwUnit:               {unitText, "The unit of the window, in upper or lower case.", -3},
		kwRequestsPerUnit:    {numberFrom(0, math.MaxUint32), "The number of hits per window; without it, or with 0, everything is refused.", 0},
		kwUnlimited:          {someFlag, "Never refuses; there must be no unit.", 0},
		kwName:               {nameIn, "The name of the limit in answers, and for replaces of other limits.", 0},
		kwReplaces:           {listOf(inReplaces), "Limits, by their names, that do not count if this one applies to the same request.", 0},
		kwShadowMode:         {someFlag, "Counts and reports, but never refuses.", -1},
		kwQuotaMode:          {someFlag, "Refuses a request only together with all its other descriptors in quota mode.", -1},
		kwDetailedMetric:     {someFlag, "The name of the metric contains the values of all entries of the request.", -1},
		kwValueToMetric:      {someFlag, "The name of the metric contains the value of this entry.", -1},
		kwShareThreshold:     {someFlag, "All values that match the wildcard share one counter.", -2},
		kwMetadata:           {anyMap, "Added to the dynamic metadata of the answer if the limit admits.", -1},
		kwCharge:             {words("each", "together"), "What a request with several descriptors pays: each counts separately, or nothing is spent if one of them refuses.", 0},
		kwAllowLimitOverride: {someFlag, "Whether a request may have limits of its own; true unless said otherwise.", 0},
		kwQuotaGroupBy:       {quotaKeys, "The keys of entries by whose values descriptors in quota mode form groups; a group is over as soon as one of its limits is, and a request is refused once all its groups are.", 0},
		kwRateLimits:         {itemList, "Several limits, up to 16, all of which have to admit a request; otherwise nothing is counted.", 0},
		kwOnFailure:          {words(FailError.String(), FailAllow.String(), FailDeny.String(), FailLocal.String()), "What to answer while the store of counters fails; local counts in this process.", 0},
		kwPenalty:            {mapOf(inPenalty), "Refuses everything for a while once the limit is exceeded or reached.", 0},
		kwHolder:             {nonEmpty, "The key, of this descriptor or of one above it, whose value identifies the holder of a slot.", 0},
		kwLease:              {leaseShape, "How many hits a server fetches in advance for a hot counter in Redis: off, auto or a number.", 0},
		kwHeaders:            {onOff, "With off, callers are not told the numbers of this rule.", 0},
		kwFor:                {someTime, "How long the penalty lasts.", 0},
		kwOn:                 {words(engine.OnExceeded.String(), engine.OnReached.String()), "What starts the penalty: a hit that is refused (exceeded), or the one that uses up the limit (reached).", 0},
		kwEscalate:           {numberFrom(1, math.MaxUint32), "The factor by which each penalty is longer than the previous one.", 0},
		kwMax:                {someTime, "The longest that a penalty can become.", 0},
		kwPlanOf:             {nonEmpty, "The key of the entry whose value is on one of the plans.", 0},
		kwPlans:              {plansShape, "The limits of each plan, by the plan's name.", 0},
		kwReserve:            {mapOf(inReserve), "Reserves hits when a request comes, and settles them once their true cost is known.", 0},
		kwTTL:                {someTime, "How long hits stay reserved.", 0},
		kwEstimate:           {numberFrom(1, math.MaxUint32), "How many hits a request reserves that does not say.", 0},
		kwOnExpiry:           {words(expiryKeep, expiryReturn), "What becomes of hits that nobody has settled in time.", 0},
		kwEntry:              {nonEmpty, "The key of the entry that settles.", 0},
		kwAlgorithm:          {algorithmShape, "How hits are counted; fixed_window unless said otherwise.", 0},
		kwUnitMultiplier:     {numberFrom(1, math.MaxUint32), "The number of units in a window; 1 unless said otherwise.", -2},
	}
}

// wordingOf returns what is said of a key; nothing if it has no row.
func wordingOf(all map[string]wording, key string) wording {
	if w, ok := all[key]; ok {
		return w
	}
	for p := range engine.Parameters() {
		if p.String() == key {
			return wording{parameterShape(p), p.About() + " For " + algorithmList(p.Takers()) + ".", 0}
		}
	}
	return wording{}
}
