package main

import (
	"cmp"
	"slices"

	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// stretch is a span of time with its admitted hits.
type stretch struct {
	from, to proof.Micros
	admitted int64
	excess   float64 // hits beyond rate × time
}

// worstStretch returns the span with the most admitted hits beyond rate, in hits per second. A hit belongs to a span if it was
// requested and decided in it. Hits in flight at the begin count as admitted before, so worstStretch underestimates spans shorter
// than a call.
func worstStretch(hits []hit, rate float64) (worst stretch) {
	begins, ends := slices.Clone(hits), slices.Clone(hits)
	slices.SortFunc(begins, func(a, b hit) int { return cmp.Compare(a.from, b.from) })
	slices.SortFunc(ends, func(a, b hit) int { return cmp.Compare(a.to, b.to) })
	flow := func(t proof.Micros) float64 { return rate * float64(t) / 1e6 }
	var best stretch // the begin of the worst span, which is independent of its end
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
