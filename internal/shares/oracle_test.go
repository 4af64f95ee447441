package shares

import (
	"math"
	"math/rand/v2"
	"testing"
)

// oracle returns max–min fair parts in the slowest obvious way: it pours the rate out in small drops, each to all claims whose
// demand is not met, by weight.
func oracle(rate float64, demands, weights []float64) []float64 {
	parts := make([]float64, len(demands))
	const drops = 20_000
	for range drops {
		open := 0.0
		for i, d := range demands {
			if parts[i] < d {
				open += weights[i]
			}
		}
		for i, d := range demands {
			if parts[i] < d {
				parts[i] = min(d, parts[i]+rate/drops*weights[i]/open)
			}
		}
	}
	return parts
}

// draw draws demands that add up to a total, and weights.
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

// TestOracle: under contention divide agrees with the oracle within 2 % of an even share, but for what every claim gets at
// least; without contention every demand is met, and nothing is left.
func TestOracle(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		n := 1 + r.IntN(40)
		const rate = 1000
		demands, weights := draw(r, n, rate*(0.3+2*r.Float64()))
		sum, least := 0.0, 0.0
		for _, w := range weights {
			sum += w
		}
		claims := make([]Claim, n)
		raised := make([]float64, n)
		for i := range claims {
			claims[i] = claimOf(demands[i], weights[i])
			least = leastClaim * rate * weights[i] / sum
			raised[i] = max(demands[i], least)
		}
		want := oracle(rate, raised, weights)
		got, _ := divide(rate, claims)
		total := 0.0
		for i := range got {
			total += got[i]
			if even := rate * weights[i] / sum; got[i] < want[i]-0.02*even || sumOf(claims).Demand > rate && got[i] > want[i]*1.02+0.02*even {
				t.Fatalf("demands %v, weights %v:\ngot %v, oracle %v", demands, weights, got, want)
			}
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

// TestOracleReplicas: replicas that know of each other no more than a row divide as one would, after a few exchanges. The
// level rises from below, so that the parts never add up to more than the rate.
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
