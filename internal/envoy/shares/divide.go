package shares

import "math"

// Constants of the division, found by simulation.
const (
	leastClaim     = 0.1  // of an even share: what a holder claims at least, so that it can show a demand
	unknownClaim   = 0.75 // of an even share: what a client claims in fast mode that has not shown a demand
	strictHeadroom = 0.25 // of a claim: all that a holder gets above it in strict mode
	headroom       = 0.1  // of a claim: what a holder gets above it as long as something is left
)

// Claim is what a holder wants, or all holders of a replica together. Rates are in hits per second.
type Claim struct {
	Demand float64
	Weight float64 // of all holders
	// Holders that want less than the fair level, per unit of weight, want Satisfied together; the others weigh Open. So
	// at a level near the fair one these holders get Satisfied + level·Open, and at any other one they get no more.
	Satisfied float64
	Open      float64
	Fresh     float64 // the weight of holders that have not shown a demand, which is not in Demand
}

// at returns what c gets at a level, and by how much that rises with the level.
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

// scaled returns a part of c.
func (c Claim) scaled(part float64) Claim {
	return Claim{c.Demand * part, c.Weight * part, c.Satisfied * part, c.Open * part, c.Fresh * part}
}

// claimOf returns the claim of one holder.
func claimOf(demand, weight float64) Claim {
	return Claim{Demand: demand, Weight: weight, Open: weight}
}

// join returns the claim of holders at the given fair level.
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

// presume adds to claims what holders are presumed to want that have not shown a demand, of a rate among so much weight.
func presume(claims []Claim, rate, weight float64) {
	for i := range claims {
		if fresh := claims[i].Fresh; fresh > 0 {
			claims[i].Demand += unknownClaim * rate * fresh / weight
		}
	}
}

// divide returns the parts of a rate, whose sum is the rate, and the fair level. Each claim gets its max–min fair part;
// what is left once all are met goes out as headroom, then half by demand and half by weight, so that a holder whose
// demand rises need not wait for a report. It raises the demands in claims to the least that a claim is.
func divide(rate float64, claims []Claim) (parts []float64, level float64) {
	sum := sumOf(claims)
	if sum.Weight == 0 {
		return make([]float64, len(claims)), 0
	}
	least := leastClaim * rate / sum.Weight
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
	left -= above
	for i, c := range claims {
		demand := 0.0
		if sum.Demand > 0 {
			demand = c.Demand / sum.Demand
		}
		parts[i] += above*demand + left*(demand+c.Weight/sum.Weight)/2
	}
	return parts, level
}

// fill returns the max–min fair parts of a rate: each claim gets all of its demand, or as much as its weight is worth at
// a level that all have in common. The level is infinite if all demands are met.
func fill(rate float64, claims []Claim) (parts []float64, level float64) {
	parts = make([]float64, len(claims))
	if sum := sumOf(claims); sum.Demand <= rate {
		for i, c := range claims {
			parts[i] = c.Demand
		}
		return parts, math.Inf(1)
	}
	for { // the level rises from below: what claims that it meets leave over is the others'
		left, slope := rate, 0.0
		for i := range claims {
			part, rises := claims[i].at(level)
			left, slope = left-part, slope+rises
		}
		if slope == 0 || !(left > rounding*rate) { // or it is no number
			break
		}
		level += left / slope
	}
	for i := range claims {
		parts[i], _ = claims[i].at(level)
	}
	return parts, level
}

func sumOf(claims []Claim) (sum Claim) {
	for _, c := range claims {
		sum.Demand += c.Demand
		sum.Weight += c.Weight
		sum.Satisfied += c.Satisfied
		sum.Open += c.Open
	}
	return sum
}

// round makes every part a whole number of hits an hour, the unit of an assignment. What a part loses is added to the next
// one, so the sum is that of the parts, rounded down.
func round(parts []float64) {
	const errors = 1e-6 // of floating point
	sum, given := 0.0, 0.0
	for i, p := range parts {
		sum += p * hour
		units := math.Floor(sum+errors) - given
		given += units
		parts[i] = units / hour
	}
}
