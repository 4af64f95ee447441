package proof

import (
	"slices"
	"sort"
)

// bound is the maximum of admitted hits in a span of time.
type bound struct {
	words string
	// until returns the exclusive end of spans that begin at from. If nil, spans have no maximum length.
	until func(from Micros) Micros
	// most returns the maximum of admitted hits in a span of length t.
	most func(u *inUse, t Micros) float64
	// kept means that refunds do not permit more hits.
	kept bool
}

// inUse has the maxima of the settings used in a span. Bursts count only for settings that admitted hits. Rates count for all
// settings that wrote, because any may have credited time.
type inUse struct {
	hits    int64 // maximum of settings that admitted
	burst   int64
	cost    int64
	rate    float64 // maximum of settings that wrote
	fill    Micros
	leasing int64 // maximum lease of a replica
}

func (u *inUse) admitted(h *hit) {
	u.cost = max(u.cost, h.n)
	for _, l := range h.limits {
		u.hits = max(u.hits, l.Hits)
		u.burst = max(u.burst, l.Burst+l.Debt)
	}
}

func (u *inUse) wrote(limits []*Limit) {
	for _, l := range limits {
		u.rate = max(u.rate, l.rate())
		u.fill = max(u.fill, l.Fill)
		u.leasing = max(u.leasing, l.Lease)
	}
}

// rounding bounds the error of float64s. It is far less than a hit.
const rounding = 1e-6

// scan checks every span that begins and ends with a hit. It returns nil if all satisfy b.
func (v *view) scan(b bound) *Excess { return v.scanFrom(v.starts(), b) }

// scanFrom checks every span that begins at one of starts and ends with a hit.
func (v *view) scanFrom(starts []Micros, b bound) *Excess {
	e := &Excess{Promise: b.words}
	found := false
	for _, from := range starts {
		v.spans(b, from, func(s Span) {
			if !found || s.Calls < e.Shortest.Calls || s.Calls == e.Shortest.Calls && s.To-s.From < e.Shortest.To-e.Shortest.From {
				e.Shortest = s
			}
			if !found || s.over() > e.Worst.over() {
				e.Worst = s
			}
			found = true
		})
	}
	if !found {
		return nil
	}
	for i := range v.hits {
		if h := &v.hits[i]; h.from >= e.Shortest.From && h.to <= e.Shortest.To {
			e.Calls = append(e.Calls, h.call)
		}
	}
	return e
}

// starts returns the begins of hits.
func (v *view) starts() []Micros {
	all := make([]Micros, 0, len(v.hits))
	for i := range v.hits {
		all = append(all, v.hits[i].from)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// spans calls found for each span from from that exceeds b.
func (v *view) spans(b bound, from Micros, found func(Span)) {
	end := forever
	if b.until != nil {
		end = b.until(from)
	}
	var u inUse
	given := int64(0)
	gives, writes := during{v.gives, from}, during{v.writes, from}
	s := Span{From: from}
	for i := sort.Search(len(v.hits), func(i int) bool { return v.hits[i].to >= from }); i < len(v.hits); i++ {
		h := &v.hits[i]
		if h.to >= end {
			return
		}
		if h.from < from {
			continue
		}
		gives.until(h.to, func(w *write) { given += w.n })
		writes.until(h.to, func(w *write) { u.wrote(w.limits) })
		u.admitted(h)
		s.To, s.Calls, s.Hits = h.to, s.Calls+1, s.Hits+h.n
		t := s
		if !b.kept {
			t.Hits -= given
		}
		if t.Most = b.most(&u, h.to-from); t.over() > rounding {
			found(t)
		}
	}
}

// during iterates over the writes that may have been in a span.
type during struct {
	left []write // by begin
	from Micros
}

// until calls each for the further writes that begin at t or before.
func (d *during) until(t Micros, each func(*write)) {
	for ; len(d.left) > 0 && d.left[0].from <= t; d.left = d.left[1:] {
		if d.left[0].to >= d.from {
			each(&d.left[0])
		}
	}
}
