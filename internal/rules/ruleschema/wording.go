package ruleschema

import (
	"math"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// wording is what the author of rules reads about a key, and what its value may be.
type wording struct {
	takes shape  // for the schema
	about string // a sentence for editors
}

// wordings has a row for each key, except for the parameters of the algorithms, which have a row in pkg/engine.
func wordings() map[string]wording {
	return map[string]wording{
		rulefile.KeyDomain:             {nonEmpty, "The name of the domain in requests."},
		rulefile.KeyDescriptors:        {listOf(rulefile.InDescriptor), "The next level of the tree: an entry of a request leads to the descriptor with its key and value, or else to the first wildcard that matches, or else to the one with only its key."},
		rulefile.KeyKey:                {nonEmpty, "The key of an entry; a * stands for any text."},
		rulefile.KeyValue:              {someText, "The value of the entry; a * stands for any text. Without a value, any value matches, each with its own counter."},
		rulefile.KeyRateLimit:          {mapOf(rulefile.InLimit), "The limit; a descriptor without one is not limited."},
		rulefile.KeyUnit:               {unitText, "The unit of the window, in upper or lower case."},
		rulefile.KeyRequestsPerUnit:    {numberFrom(0, engine.MaxLimit), "The number of hits per window; if missing or 0, every request is rejected."},
		rulefile.KeyUnlimited:          {someFlag, "Never rejects; unit must not be set."},
		rulefile.KeyName:               {nameIn, "The name of the limit in answers, and in replaces of other limits."},
		rulefile.KeyReplaces:           {listOf(rulefile.InReplaces), "Limits, by their names, that do not count if this one applies to the same request."},
		rulefile.KeyShadowMode:         {someFlag, "Counts and reports, but never rejects."},
		rulefile.KeyQuotaMode:          {someFlag, "Rejects a request only if all its other descriptors in quota mode reject it too."},
		rulefile.KeyDetailedMetric:     {someFlag, "The metric's name contains the values of all entries of the request."},
		rulefile.KeyValueToMetric:      {someFlag, "The metric's name contains the value of this entry."},
		rulefile.KeyShareThreshold:     {someFlag, "All values that match the wildcard share one counter."},
		rulefile.KeyMetadata:           {anyMap, "Added to the dynamic metadata of the answer if the limit admits."},
		rulefile.KeyCharge:             {words("each", "together"), "What a request with several descriptors pays: each counts separately, or nothing is spent if one of them rejects."},
		rulefile.KeyAllowLimitOverride: {someFlag, "Whether a request may carry limits of its own; true by default."},
		rulefile.KeyQuotaGroupBy:       {quotaKeys, "Entry keys that group descriptors in quota mode by value. A group is over when one of its limits is exceeded; a request is rejected when all its groups are over."},
		rulefile.KeyRateLimits:         {itemList, "Several limits, up to 16. All must admit a request; otherwise nothing is counted."},
		rulefile.KeyOnFailure:          {words(descriptors.FailError.String(), descriptors.FailAllow.String(), descriptors.FailDeny.String(), descriptors.FailLocal.String()), "The fallback while the backend fails; local counts in this process."},
		rulefile.KeyPenalty:            {mapOf(rulefile.InPenalty), "Rejects everything for a while once the limit is exceeded or reached."},
		rulefile.KeyHolder:             {nonEmpty, "The key, of this descriptor or of one above it, whose value identifies the holder of a slot."},
		rulefile.KeyLease:              {leaseShape, "How many hits a server fetches in advance for a hot counter in Redis: off, auto or a number."},
		rulefile.KeyHeaders:            {onOff, "With off, answers do not show the numbers of this rule."},
		rulefile.KeyFor:                {someTime, "How long the penalty lasts."},
		rulefile.KeyOn:                 {words(engine.OnExceeded.String(), engine.OnReached.String()), "What starts the penalty: a hit that is rejected (exceeded), or the one that uses up the limit (reached)."},
		rulefile.KeyEscalate:           {numberFrom(1, math.MaxUint32), "The factor by which each penalty is longer than the previous one."},
		rulefile.KeyMax:                {someTime, "The maximum length of a penalty."},
		rulefile.KeyPlanOf:             {nonEmpty, "The key of the entry whose value names the tenant."},
		rulefile.KeyPlans:              {plansShape, "The limits of each plan, by the plan's name."},
		rulefile.KeyReserve:            {mapOf(rulefile.InReserve), "Reserves hits when a request arrives, and settles them once their true cost is known."},
		rulefile.KeyTTL:                {someTime, "How long hits stay reserved."},
		rulefile.KeyEstimate:           {numberFrom(1, math.MaxUint32), "How many hits to reserve for a request that does not set a number."},
		rulefile.KeyOnExpiry:           {words(rulefile.ExpiryKeep, rulefile.ExpiryReturn), "What happens to hits that are not settled in time."},
		rulefile.KeyEntry:              {nonEmpty, "The key of the entry that settles."},
		rulefile.KeyBy:                 {nonEmpty, "The key, of this descriptor or of one above it and without a value, whose value is the same in both calls of a request."},
		rulefile.KeyRLQS:               {rlqsShape, "Divides the limit among Envoys that decide locally (RLQS)."},
		rulefile.KeyMode:               {words("strict", "fast"), "What a divided limit guarantees: strict never admits more, fast follows demand and does not apply to fixed_window."},
		rulefile.KeyWeightFrom:         {nonEmpty, "The metadata key with the weight of a client."},
		rulefile.KeyMonth:              {numberFrom(1, 12), "The month in which windows of a year begin; 1 by default."},
		rulefile.KeyDay:                {numberFrom(1, 31), "The day of the month on which windows begin; 1 by default. In months without that day it is the last one."},
		rulefile.KeyWeekday:            {numberFrom(1, 7), "The day on which windows of a week begin: 1, the default, is Monday."},
		rulefile.KeyHour:               {numberFrom(0, 23), "The hour at which windows begin, by the clocks of the time zone; 0 by default."},
		rulefile.KeyAlgorithm:          {algorithmShape, "How hits are counted; fixed_window by default."},
		rulefile.KeyUnitMultiplier:     {numberFrom(1, math.MaxUint32), "The number of units in a window; 1 by default."},
	}
}

// wordingOf returns what is said of a key; nothing if it has no row.
func wordingOf(all map[string]wording, key string) wording {
	if w, ok := all[key]; ok {
		return w
	}
	for p := range engine.Parameters() {
		if p.String() == key {
			return wording{parameterShape(p), p.About() + " For " + rulefile.AlgorithmList(p.Takers()) + "."}
		}
	}
	return wording{}
}
