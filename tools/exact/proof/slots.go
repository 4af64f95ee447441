package proof

import (
	"cmp"
	"maps"
	"slices"
)

// owned is the calls of an owner of slots.
type owned struct {
	takes    []hit   // admitted, by end
	releases []write // by begin, like unsure
	unsure   []write // takes without an answer
}

// held: owners never hold more slots than the largest limit. An owner certainly holds its last take, minus possible releases
// since.
func (v *view) held() *Excess {
	owners := v.byOwner()
	e := &Excess{Promise: "at most the largest limit held at once"}
	most := int64(0)
	for i := range v.hits {
		h := &v.hits[i]
		o := owners[h.call.Owner]
		o.takes = append(o.takes, *h)
		for _, l := range h.limits {
			most = max(most, l.Hits)
		}
		now, calls := holding(owners, h.to)
		if now.Most = float64(most); now.over() <= rounding {
			continue
		}
		if e.Calls == nil || now.Calls < e.Shortest.Calls {
			e.Shortest, e.Calls = now, calls
		}
		if now.over() > e.Worst.over() {
			e.Worst = now
		}
	}
	if e.Calls == nil {
		return nil
	}
	slices.SortStableFunc(e.Calls, func(a, b *Call) int { return cmp.Compare(a.Done, b.Done) })
	return e
}

// byOwner returns the calls of each owner, without admitted takes.
func (v *view) byOwner() map[string]*owned {
	owners := map[string]*owned{}
	for _, w := range v.writes {
		o := owners[w.call.Owner]
		if o == nil {
			o = &owned{}
			owners[w.call.Owner] = o
		}
		switch {
		case w.call.Kind == Refund:
			o.releases = append(o.releases, w)
		case w.call.Outcome == Unanswered:
			o.unsure = append(o.unsure, w)
		}
	}
	return owners
}

// holding returns the slots that owners certainly hold at t, and the calls that took them.
func holding(owners map[string]*owned, t Micros) (s Span, calls []*Call) {
	s = Span{From: t, To: t}
	for _, name := range slices.Sorted(maps.Keys(owners)) {
		if n, take := owners[name].holds(t); n > 0 {
			s.Hits, s.Calls = s.Hits+n, s.Calls+1
			s.From = min(s.From, take.Sent)
			calls = append(calls, take)
		}
	}
	return s, calls
}

// holds returns the slots that o certainly holds at t, and the call that took them. Every take in o ended before t.
func (o *owned) holds(t Micros) (n int64, take *Call) {
	for i := len(o.takes) - 1; i >= max(len(o.takes)-recent, 0); i-- {
		h := &o.takes[i]
		left := h.n
		for k := len(o.releases) - 1; k >= 0 && left > n; k-- {
			if r := &o.releases[k]; r.from <= t && r.to >= h.from {
				left -= r.n
			}
		}
		if left > n && t < o.ends(h, t) {
			n, take = left, h.call
		}
	}
	return n, take
}

// ends returns the earliest end of the slots taken by h: every take renews all slots of its owner for its own window.
func (o *owned) ends(h *hit, t Micros) Micros {
	end := h.from + shortest(h.limits)
	for i := len(o.takes) - 1; i >= 0 && o.takes[i].to >= h.from; i-- {
		end = min(end, o.takes[i].from+shortest(o.takes[i].limits))
	}
	for _, w := range o.unsure {
		if w.from <= t {
			end = min(end, w.from+shortest(w.limits))
		}
	}
	return end
}

// recent is the number of an owner's last takes to consider.
const recent = 8
