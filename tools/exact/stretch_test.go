package main

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// TestWorstStretch compares worstStretch with a check of every span.
func TestWorstStretch(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 0))
		longest := r.Int64N(2) * 50_000
		var hits []hit
		for range 1 + r.IntN(60) {
			from := proof.Micros(1 + r.Int64N(2_000_000))
			hits = append(hits, hit{from: from, to: from + proof.Micros(r.Int64N(longest+1)), admitted: r.Int64N(5)})
		}
		const rate = 40
		got, want := worstStretch(hits, rate), everyStretch(hits, rate)
		if longest == 0 && math.Abs(got.excess-want.excess) > 1e-6 || got.excess > want.excess+1e-6 {
			t.Errorf("seed %d: %+v, want %+v", seed, got, want)
		}
		if x := float64(got.admitted) - rate*float64(got.to-got.from)/1e6; math.Abs(x-got.excess) > 1e-6 {
			t.Errorf("seed %d: %+v, but %v beyond the rate", seed, got, x)
		}
	}
}

func everyStretch(hits []hit, rate float64) (worst stretch) {
	for _, first := range hits {
		for _, last := range hits {
			sum := int64(0)
			for _, h := range hits {
				if h.from >= first.from && h.to <= last.to {
					sum += h.admitted
				}
			}
			x := float64(sum) - rate*float64(last.to-first.from)/1e6
			if last.to >= first.from && x > worst.excess {
				worst = stretch{first.from, last.to, sum, x}
			}
		}
	}
	return worst
}
