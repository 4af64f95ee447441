package shares

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// oracle returns max–min fair parts in the obvious way. At one level, found by bisection, each claim gets its weight times the level, or
// its demand if that is less.
func oracle(rate float64, demands, weights []float64) []float64 {
	parts := make([]float64, len(demands))
	low, high := 0.0, 0.0
	for i, d := range demands {
		high = max(high, d/weights[i])
	}
	for range 60 {
		level, sum := (low+high)/2, 0.0
		for i, d := range demands {
			parts[i] = min(d, level*weights[i])
			sum += parts[i]
		}
		if sum > rate {
			high = level
		} else {
			low = level
		}
	}
	return parts
}

// apart returns the maximum difference of parts from those of the oracle, in even shares. Without contention, only parts that are too
// small count.
func apart(rate float64, parts, demands, weights []float64) (worst float64) {
	sum, all := 0.0, 0.0
	for _, w := range weights {
		sum += w
	}
	raised := slices.Clone(demands)
	for i := range raised {
		raised[i] = max(raised[i], minClaim*rate*weights[i]/sum)
		all += raised[i]
	}
	for i, want := range oracle(rate, raised, weights) {
		even := rate * weights[i] / sum
		worst = max(worst, (want-parts[i])/even)
		if all > rate {
			worst = max(worst, (parts[i]-want)/max(even, want))
		}
	}
	return worst
}

// OffOracle returns the maximum difference of the targets of b's holders from the oracle's, in even shares, if b divides now.
func (b *Bucket) OffOracle() float64 {
	c := b.Clone()
	c.plan(c.clock.now)
	var parts, demands, weights []float64
	for _, h := range c.holders {
		if h.state != streamEnded && h.demand.known {
			parts, demands, weights = append(parts, h.target), append(demands, h.demand.rate), append(weights, h.Weight)
		}
	}
	if len(parts) < len(c.holders) || c.portion <= 0 { // a demand is unknown
		return 0
	}
	return apart(c.portion, parts, demands, weights)
}

// draw draws weights, and demands with the given total.
func draw(r *rand.Rand, n int, total float64) (demands, weights []float64) {
	sum := 0.0
	for range n {
		demands = append(demands, math.Exp(1.5*r.NormFloat64()))
		weights = append(weights, float64(1+r.IntN(4)))
		sum += demands[len(demands)-1]
	}
	for i := range demands {
		demands[i] *= total / sum
	}
	return demands, weights
}

// TestOracle checks that under contention divide agrees with the oracle, except for the minimum claim. Without contention, every demand
// must be met, and nothing left.
func TestOracle(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		n := 1 + r.IntN(40)
		const rate = 1000
		demands, weights := draw(r, n, rate*(0.3+2*r.Float64()))
		claims := make([]Claim, n)
		for i := range claims {
			claims[i] = claimOf(demands[i], weights[i])
		}
		got, _ := divide(rate, claims)
		if off := apart(rate, got, demands, weights); off > 1e-6 {
			t.Fatalf("demands %v, weights %v: got %v, which is %v off", demands, weights, got, off)
		}
		total := 0.0
		for i := range got {
			total += got[i]
		}
		if math.Abs(total-rate) > 1e-6 {
			t.Fatalf("parts add up to %v of %v", total, rate)
		}
		round(got)
		units := 0.0
		for _, p := range got {
			if u := p * hour; math.Abs(u-math.Round(u)) > 1e-6 {
				t.Fatalf("%v is no whole number of hits an hour", p)
			}
			units += math.Round(p * hour)
		}
		if units != rate*hour {
			t.Fatalf("rounded parts add up to %v hits an hour, want %v", units, rate*hour)
		}
	}
}

// TestOracleReplicas checks that after a few exchanges, replicas that know only each other's rows divide like a single one. The level
// must rise from below, so that the sum of the parts never exceeds the rate.
func TestOracleReplicas(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	slowest := 0
	for range 200 {
		const rate = 1000
		replicas, n := 2+r.IntN(4), 2+r.IntN(60)
		demands, weights := draw(r, n, rate*(1.1+2*r.Float64()))
		want := oracle(rate, demands, weights)
		claims := make([][]Claim, replicas)
		at := make([]int, n)
		for i := range demands {
			at[i] = r.IntN(replicas)
			claims[at[i]] = append(claims[at[i]], claimOf(demands[i], weights[i]))
		}
		rows := make([]Claim, replicas)
		level := math.Inf(1)
		rounds := 0
		for worst := 1.0; worst > 0.02; rounds++ {
			if rounds > 20 {
				t.Fatalf("%v of the rate is not where it should be after %d rounds", worst, rounds)
			}
			for i := range rows {
				rows[i] = join(claims[i], level)
			}
			var parts []float64
			parts, level = fill(rate, rows)
			got := make([][]float64, replicas)
			for i := range rows {
				got[i], _ = fill(parts[i], claims[i])
			}
			worst = 0
			for i := range demands {
				part := got[at[i]][0]
				got[at[i]] = got[at[i]][1:]
				worst += math.Abs(part-want[i]) / 2 / rate
			}
		}
		slowest = max(slowest, rounds)
	}
	t.Logf("within 2 %% after at most %d exchanges", slowest)
}
