package shares

import "math"

// Constants of the division, found by simulation.
const (
	minClaim       = 0.1  // of an even share: minimum claim of a holder, so that it can show a demand
	unknownClaim   = 0.75 // of an even share: claim of a client without a known demand, in fast mode
	strictHeadroom = 0.25 // of a claim: maximum excess of a holder in strict mode
	headroom       = 0.1  // of a claim: excess of a holder while any rate is left
	restByDemand   = 0.25 // of the rest: divided by demand
)

// Claim is the demand of a holder, or of all holders of a replica together. Rates are in hits per second.
type Claim struct {
	Demand float64
	Weight float64 // of all holders
	// Holders below the fair level, per unit of weight, claim Satisfied together; the others have the weight Open. So at a level near the
	// fair one, the holders get Satisfied + level·Open, and at any other level they do not get more.
	Satisfied float64
	Open      float64
	Fresh     float64 // weight of holders without a known demand, which Demand excludes
}

// at returns the part of c at a level, and its derivative.
func (c *Claim) at(level float64) (part, slope float64) {
	part, slope = c.Satisfied+level*c.Open, c.Open
	if all := level * c.Weight; all < part { // the claim was made at a higher level
		part, slope = all, c.Weight
	}
	if part >= c.Demand {
		return c.Demand, 0
	}
	return part, slope
}

// scaled returns c multiplied by part.
func (c Claim) scaled(part float64) Claim {
	return Claim{c.Demand * part, c.Weight * part, c.Satisfied * part, c.Open * part, c.Fresh * part}
}

// claimOf returns the claim of one holder.
func claimOf(demand, weight float64) Claim {
	return Claim{Demand: demand, Weight: weight, Open: weight}
}

// join returns the combined claim of holders at a fair level.
func join(claims []Claim, level float64) (all Claim) {
	for _, c := range claims {
		all.Demand += c.Demand
		all.Weight += c.Weight
		all.Fresh += c.Fresh
		if c.Demand <= level*c.Weight && c.Fresh == 0 {
			all.Satisfied += c.Demand
		} else {
			all.Open += c.Weight
		}
	}
	return all
}

// presume adds the presumed demand of holders without a known demand to claims, given the rate and the total weight.
func presume(claims []Claim, rate, weight float64) {
	for i := range claims {
		if fresh := claims[i].Fresh; fresh > 0 {
			claims[i].Demand += unknownClaim * rate * fresh / weight
		}
	}
}

// divide returns the parts of a rate, whose sum is the rate, and the fair level. Each claim gets its max–min fair part. If all are met,
// the rest is headroom, so that a holder whose demand rises need not wait for a report: first a part of each demand. Of what is left, most
// goes to the smallest parts by weight, so that holders that were idle get as much as others, and some to the largest demands.
// divide raises the demands in claims to the minimum claim.
func divide(rate float64, claims []Claim) (parts []float64, level float64) {
	sum := sumOf(claims)
	if sum.Weight == 0 {
		return make([]float64, len(claims)), 0
	}
	least := minClaim * rate / sum.Weight
	for i := range claims {
		claims[i].Demand = max(claims[i].Demand, least*claims[i].Open)
	}
	sum = sumOf(claims)
	parts, level = fill(rate, claims)
	left := rate - sum.Demand
	if left <= 0 {
		return parts, level
	}
	above := min(headroom*sum.Demand, left)
	byDemand := above + restByDemand*(left-above)
	for i, c := range claims {
		if sum.Demand > 0 {
			parts[i] += byDemand * c.Demand / sum.Demand
		}
	}
	raise(parts, claims, left-byDemand)
	return parts, level
}

// raise adds a rate to the smallest parts by weight, which become equal.
func raise(parts []float64, claims []Claim, rate float64) {
	level := math.Inf(1)
	for { // the level falls from above, past parts that need nothing
		sum, weight := rate, 0.0
		for i := range claims {
			if parts[i] < level*claims[i].Weight {
				sum, weight = sum+parts[i], weight+claims[i].Weight
			}
		}
		if weight == 0 || sum >= level*weight*(1-rounding) {
			break
		}
		level = sum / weight
	}
	for i := range claims {
		if least := level * claims[i].Weight; parts[i] < least {
			parts[i] = least
		}
	}
}

// fill returns the max–min fair parts of a rate: each claim gets its demand, or its weight multiplied by a common level. The level is
// infinite if all demands are met.
func fill(rate float64, claims []Claim) (parts []float64, level float64) {
	parts = make([]float64, len(claims))
	if sum := sumOf(claims); sum.Demand <= rate {
		for i, c := range claims {
			parts[i] = c.Demand
		}
		return parts, math.Inf(1)
	}
	for { // the level rises from below: claims that it meets leave the rest to the others
		left, slope := rate, 0.0
		for i := range claims {
			part, rises := claims[i].at(level)
			left, slope = left-part, slope+rises
		}
		if slope == 0 || !(left > rounding*rate) { // also if left is NaN
			break
		}
		level += left / slope
	}
	for i := range claims {
		parts[i], _ = claims[i].at(level)
	}
	return parts, level
}

// sumOf adds up claims.
func sumOf(claims []Claim) (sum Claim) {
	for _, c := range claims {
		sum.Demand += c.Demand
		sum.Weight += c.Weight
		sum.Satisfied += c.Satisfied
		sum.Open += c.Open
	}
	return sum
}

// round rounds every part to a whole number of hits per hour, the unit of an assignment. It adds each remainder to the next part, so the
// sum is preserved, rounded down.
func round(parts []float64) {
	const errors = 1e-6 // floating-point error
	sum, given := 0.0, 0.0
	for i, p := range parts {
		sum += p * hour
		units := math.Floor(sum+errors) - given
		given += units
		parts[i] = units / hour
	}
}
