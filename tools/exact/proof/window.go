package proof

import "cmp"

// fixedWindow: at most the limit in each window.
func (v *view) fixedWindow() []*Excess {
	if len(v.hits) == 0 {
		return nil
	}
	limit := v.hits[0].limits[0]
	perWindow := bound{
		words: "at most the largest limit per window",
		until: func(from Micros) Micros { _, end := limit.window(from); return end },
		most:  func(u *inUse, _ Micros) float64 { return float64(u.hits) },
	}
	if !limit.First {
		return []*Excess{v.scan(perWindow)}
	}
	windows := v.windows(limit.Window)
	perWindow.until = func(from Micros) Micros {
		for _, w := range windows {
			if from >= w.begun && from < w.end {
				return w.end
			}
		}
		return from
	}
	twice := v.within(limit.Window)
	twice.words = "at most twice the largest limit in any window's length"
	twice.most = func(u *inUse, _ Micros) float64 { return float64(2 * u.hits) }
	return []*Excess{v.scan(perWindow), v.scan(twice)}
}

// certain is the certain part of a window: from its latest possible begin to its earliest possible end.
type certain struct{ begun, end Micros }

// windows returns the consecutive windows of length w that begin with their first hits.
func (v *view) windows(w Micros) []certain {
	var all []certain
	if len(v.writes) == 0 {
		return nil
	}
	earliest, latest, known := v.writes[0].from, Micros(0), false
	for {
		if latest, known = v.admittedAfter(latest); !known {
			return all
		}
		all = append(all, certain{latest, earliest + w})
		latest += w
		earliest = v.writtenAfter(earliest + w)
	}
}

// admittedAfter returns the latest possible time of the first hit that was certainly after t.
func (v *view) admittedAfter(t Micros) (latest Micros, ok bool) {
	for i := range v.hits { // by end
		if v.hits[i].from >= t {
			return v.hits[i].to, true
		}
	}
	return 0, false
}

// writtenAfter returns the earliest possible time of the first write after t.
func (v *view) writtenAfter(t Micros) Micros {
	first := forever
	for i := range v.writes {
		if w := &v.writes[i]; w.to >= t && w.call.Kind == Take {
			first = min(first, max(w.from, t))
		}
	}
	return first
}

// slidingWindow: at most the limit in any span of a window's length.
func (v *view) slidingWindow() *Excess {
	if len(v.hits) == 0 {
		return nil
	}
	return v.scan(v.within(v.counter.Window))
}

// within returns the bound of the largest limit in any span of length w.
func (v *view) within(w Micros) bound {
	return bound{
		words: "at most the largest limit in any window",
		until: func(from Micros) Micros { return from + w },
		most:  func(u *inUse, _ Micros) float64 { return float64(u.hits) },
	}
}

// longest checks stamps and slots, which settings with different windows share. A hit admitted with a window of at least W is
// remembered for W, so later ones count it.
func (v *view) longest(words string) []*Excess {
	lengths := map[Micros]bool{}
	for i := range v.hits {
		lengths[shortest(v.hits[i].limits)] = true
	}
	var all []*Excess
	for w := range lengths {
		long := &view{counter: v.counter, writes: v.writes, gives: v.gives}
		for _, h := range v.hits {
			if shortest(h.limits) >= w {
				long.hits = append(long.hits, h)
			}
		}
		b := v.within(w)
		b.words = words
		if e := long.scan(b); e != nil {
			all = append(all, e)
		}
	}
	return worst(all)
}

// shortest returns the shortest window of limits.
func shortest(limits []*Limit) Micros {
	w := limits[0].Window
	for _, l := range limits {
		w = min(w, l.Window)
	}
	return w
}

// worst returns the excess furthest above its bound.
func worst(all []*Excess) []*Excess {
	var most *Excess
	for _, e := range all {
		if most == nil || cmp.Compare(e.Worst.over(), most.Worst.over()) > 0 {
			most = e
		}
	}
	if most == nil {
		return nil
	}
	return []*Excess{most}
}
