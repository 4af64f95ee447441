package main

import (
	"cmp"
	"slices"

	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// stretch is a time and what was admitted in it.
type stretch struct {
	from, to proof.Micros
	admitted int64
	excess   float64 // beyond rate × time
}

// worstStretch returns the span in which most was admitted beyond a rate, in hits a second. A hit is in a span if it was asked for and
// decided in it. Those under way at its begin are counted as if they had been admitted before, so in spans shorter than a call there are more.
func worstStretch(hits []hit, rate float64) (worst stretch) {
	begins, ends := slices.Clone(hits), slices.Clone(hits)
	slices.SortFunc(begins, func(a, b hit) int { return cmp.Compare(a.from, b.from) })
	slices.SortFunc(ends, func(a, b hit) int { return cmp.Compare(a.to, b.to) })
	flow := func(t proof.Micros) float64 { return rate * float64(t) / 1e6 }
	var best stretch // the span that is worst at its end, whose begin does not depend on that
	begun, ended := int64(0), int64(0)
	for i, e := range ends {
		for ; len(begins) > 0 && begins[0].from <= e.to; begins = begins[1:] {
			b := begins[0]
			if low := float64(begun) - flow(b.from); best.from == 0 || low < best.excess {
				best = stretch{from: b.from, admitted: begun, excess: low}
			}
			begun += b.admitted
		}
		ended += e.admitted
		if i+1 < len(ends) && ends[i+1].to == e.to {
			continue
		}
		if x := float64(ended) - flow(e.to) - best.excess; x > worst.excess {
			worst = stretch{best.from, e.to, ended - best.admitted, x}
		}
	}
	return worst
}
