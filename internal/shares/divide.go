package shares

import "math"

// Constants of the division, found by simulation.
const (
	leastClaim     = 0.1  // of an even share: what a holder claims at least, so that it can show a demand
	strictHeadroom = 0.25 // of a claim: all that a holder gets above it in strict mode
	headroom       = 0.1  // of a claim: what a holder gets above it as long as something is left
)

// Claim is what a holder wants, or all holders of a replica together. Rates are in hits a second.
type Claim struct {
	Demand float64
	Weight float64 // of all holders
	// Holders that want less than the fair level, per unit of weight, want Satisfied together; the others weigh Open. So
	// at a level near the fair one these holders get Satisfied + level·Open, and at any other one they get no more.
	Satisfied float64
	Open      float64
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
		if c.Demand <= level*c.Weight {
			all.Satisfied += c.Demand
		} else {
			all.Open += c.Weight
		}
	}
	return all
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
	sum := sumOf(claims)
	if sum.Satisfied > rate { // the claims were made at too high a level; the next ones start low
		for i, c := range claims {
			parts[i] = rate * c.Satisfied / sum.Satisfied
		}
		return parts, 0
	}
	if sum.Demand <= rate {
		for i, c := range claims {
			parts[i] = c.Demand
		}
		return parts, math.Inf(1)
	}
	for { // the level rises from below: what claims that it meets leave over is the others'
		left, open := rate, 0.0
		for i := range claims {
			if c := &claims[i]; c.Satisfied+level*c.Open >= c.Demand {
				left -= c.Demand
			} else {
				left, open = left-c.Satisfied, open+c.Open
			}
		}
		if open == 0 || left/open <= level {
			break
		}
		level = left / open
	}
	for i, c := range claims {
		parts[i] = min(c.Satisfied+level*c.Open, c.Demand)
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
